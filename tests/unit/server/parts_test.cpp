// SPDX-License-Identifier: Apache-2.0
// Parts that need no server.
#include <array>

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "convert.hpp"
#include "fixture.hpp"
#include "peers.hpp"
#include "start_task.hpp"
#include "tls.hpp"

namespace holdfast::server::testing {
namespace {

TEST(HostList, CompressesAsSlurmDoes) {
    EXPECT_EQ(host_list({}), "");
    EXPECT_EQ(host_list({"n1"}), "n1");
    EXPECT_EQ(host_list({"n01", "n02", "n03", "n07"}), "n[01-03,07]");
    EXPECT_EQ(host_list({"n9", "n10"}), "n[9,10]");
    EXPECT_EQ(host_list({"gpu-1", "login", "gpu-2"}), "gpu-[1-2],login");
    EXPECT_EQ(host_list({"a1b", "a2b"}), "a1b,a2b");
}

TEST(TaskEnvironment, LocalRanksCountPerNode) {
    services::JobRow job;
    job.id = JobId(7);
    job.name = "x";
    job.array_parent = 5;
    job.array_index = 2;
    std::vector<services::TaskRow> tasks(3);
    for (std::size_t i = 0; i < tasks.size(); ++i) {
        tasks[i].id = TaskId(static_cast<std::int64_t>(i) + 10);
        tasks[i].rank = static_cast<std::int32_t>(i);
        tasks[i].node = i == 1 ? "b" : "a";
    }
    tasks[2].gpu_slots = {1, 3};
    const auto env = task_environment(job, tasks[2], tasks, {{"a", "10.0.0.1"}, {"b", "10.0.0.2"}});
    EXPECT_EQ(env.at("LOCAL_RANK"), "1");
    EXPECT_EQ(env.at("LOCAL_WORLD_SIZE"), "2");
    EXPECT_EQ(env.at("MASTER_ADDR"), "10.0.0.1");
    EXPECT_EQ(env.at("MASTER_PORT"), "20007");
    EXPECT_EQ(env.at("CUDA_VISIBLE_DEVICES"), "1,3");
    EXPECT_EQ(env.at("SLURM_NODEID"), "0");
    EXPECT_EQ(env.at("SLURM_NNODES"), "2");
    EXPECT_EQ(env.at("SLURM_ARRAY_JOB_ID"), "5");
    EXPECT_EQ(env.at("SLURM_ARRAY_TASK_ID"), "2");
    const auto other = task_environment(job, tasks[1], tasks, {});
    EXPECT_EQ(other.at("CUDA_VISIBLE_DEVICES"), "");
    EXPECT_EQ(other.at("SLURM_NODEID"), "1");
}

TEST(Arrays, TheWorstEndSpeaks) {
    const auto state_of = [](const std::vector<std::string>& states) {
        std::vector<services::JobRow> rows(states.size());
        for (std::size_t i = 0; i < states.size(); ++i) {
            rows[i].id = JobId(static_cast<std::int64_t>(i) + 2);
            rows[i].array_parent = 1;
            rows[i].state = states[i];
        }
        return array_as_job(1, rows).state();
    };
    EXPECT_EQ(state_of({"completed", "running", "failed"}), "running");
    EXPECT_EQ(state_of({"completed", "pending", "failed"}), "pending");
    EXPECT_EQ(state_of({"completed", "failed", "cancelled"}), "failed");
    EXPECT_EQ(state_of({"completed", "cancelled"}), "cancelled");
    EXPECT_EQ(state_of({"completed", "completed"}), "completed");
}

/// A descriptor number belongs to one uid for ever, so that a call of a connection that ended can
/// never run as the user of the next connection with that number.
TEST(PeersTest, NumbersNeverChangeHands) {
    Peers peers;
    const uid_t me = geteuid();
    const uid_t other = me == 0 ? 65534 : 0;
    const auto connect = [&](uid_t uid) {
        std::array<int, 2> ends{};
        EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
        const auto number = peers.adopt(ends[0], uid);
        close(ends[1]);
        EXPECT_TRUE(number);
        return number.value_or(-1);
    };
    const int mine = connect(me);
    close(mine);  // gRPC closes it when the connection ends
    const int theirs = connect(other);
    EXPECT_NE(theirs, mine);
    const int again = connect(me);
    EXPECT_EQ(again, mine);
    EXPECT_EQ(peers.find("fd:" + std::to_string(mine))->role, Role::admin);
    EXPECT_EQ(peers.find("unix:fd:" + std::to_string(mine))->role, Role::admin);
    close(again);
    EXPECT_EQ(peers.find("fd:" + std::to_string(mine))->user, caller_of_uid(me)->user);
    close(theirs);
    for (const char* bad :
         {"", "fd:", "fd:0", "fd:3", "fd:99999999", "ipv4:1.2.3.4:5", "fd:-1", "ipv4:fd:1024"}) {
        EXPECT_FALSE(peers.find(bad)) << bad;
    }
}

TEST(PeersTest, OneUserCannotUseAllNumbersUp) {
    Peers peers;
    std::vector<int> numbers;
    bool was_refused = false;
    for (std::size_t i = 0; i < Peers::kConnectionsPerUserMax + 8 && !was_refused; ++i) {
        std::array<int, 2> ends{};
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
            break;  // a small limit of descriptors: nothing to see here
        }
        const auto number = peers.adopt(ends[0], geteuid());
        close(ends[1]);
        was_refused = !number;
        if (number) {
            numbers.push_back(*number);
        }
    }
    EXPECT_LE(numbers.size(), Peers::kConnectionsPerUserMax);
    EXPECT_TRUE(was_refused || numbers.size() < Peers::kConnectionsPerUserMax);
    for (const int number : numbers) {
        close(number);
    }
}

TEST(Tls, CertificatesAreKeptUntilTheHostChanges) {
    const TemporaryFolder folder;
    const auto first = ensure_tls(real_env(), folder.path(), {"localhost", "127.0.0.1"});
    ASSERT_TRUE(first) << first.error().describe();
    const auto second = ensure_tls(real_env(), folder.path(), {"localhost", "127.0.0.1"});
    ASSERT_TRUE(second);
    EXPECT_EQ(first->certificate_pem, second->certificate_pem);
    const auto third = ensure_tls(real_env(), folder.path(), {"localhost", "head.example.org"});
    ASSERT_TRUE(third);
    EXPECT_NE(first->certificate_pem, third->certificate_pem);
    EXPECT_EQ(first->ca_pem, third->ca_pem);
    ASSERT_TRUE(real_env().files.write_file_atomic(folder.path() + "/server.crt", "junk", 0644));
    const auto broken = ensure_tls(real_env(), folder.path(), {"localhost"});
    ASSERT_FALSE(broken);
    EXPECT_EQ(broken.error().code, Errc::store_corrupt);
}

}  // namespace
}  // namespace holdfast::server::testing
