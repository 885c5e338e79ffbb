// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <csignal>
#include <fstream>

#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake_server.hpp"
#include "process_fixture.hpp"
#include "process_tree.hpp"

namespace holdfast::agent {
namespace {

namespace fs = std::filesystem;

class AgentProcess : public ProcessTest {
  protected:
    AgentProcess() : server((base / "hold.sock").string()) {
        server.start();
        fs::create_directory(base / "open");
        ::chmod((base / "open").c_str(), 0777);
    }

    [[nodiscard]] std::unique_ptr<Program> agent(std::vector<std::string> more = {},
                                                 const std::string& state = "state") {
        std::vector<std::string> words = {libexec + "/hold-agent",
                                          "--server",
                                          "unix:" + (base / "hold.sock").string(),
                                          "--state",
                                          (base / state).string(),
                                          "--name",
                                          "n1",
                                          "--cpus",
                                          "4",
                                          "--memory",
                                          "2G",
                                          "--gpus",
                                          "2",
                                          "--gpu-type",
                                          "test"};
        words.insert(words.end(), more.begin(), more.end());
        return std::make_unique<Program>(words, environment, -1, (base / "agent.log").string());
    }

    [[nodiscard]] static v1::StartTask task(std::int64_t id, std::int64_t lease,
                                            const std::string& run) {
        v1::StartTask start;
        start.set_task(id);
        start.set_job(7);
        start.set_lease(lease);
        start.set_user(job_user());
        start.set_run(run);
        return start;
    }

    /// A file that jobs of any user can see and make.
    [[nodiscard]] std::string open_file(const std::string& name) const {
        return (base / "open" / name).string();
    }

    /// Waits until that file exists: the loop in a job's shell text.
    [[nodiscard]] std::string wait_for_file(const std::string& name) const {
        return "while [ ! -e " + open_file(name) + " ]; do sleep 0.02; done; ";
    }

    [[nodiscard]] fs::path folder(std::int64_t id, std::int64_t lease) const {
        return base / "state/tasks" / fmt::format("{}-{}", id, lease);
    }

    [[nodiscard]] bool is_forgotten(std::int64_t id, std::int64_t lease) const {
        return eventually([&] { return !fs::exists(folder(id, lease)); });
    }

    FakeServer server;
    std::map<std::string, std::string> environment;
};

TEST_F(AgentProcess, RegistersWhatItHas) {
    const auto running = agent({"--pool", "p", "--address", "10.0.0.1"});
    const v1::RegisterNode node = server.registration(1);
    EXPECT_EQ(node.name(), "n1");
    EXPECT_EQ(node.pool(), "p");
    EXPECT_EQ(node.address(), "10.0.0.1");
    EXPECT_EQ(node.instance().size(), 32U);
    EXPECT_EQ(node.capacity().cpus(), 4);
    EXPECT_EQ(node.capacity().memory_bytes(), std::int64_t{2} << 30);
    EXPECT_EQ(node.capacity().gpus(), 2);
    EXPECT_EQ(node.capacity().gpu_type(), "test");
    EXPECT_EQ(node.tasks_size(), 0);
    EXPECT_TRUE(eventually([&] { return server.heartbeats() >= 3; }));
    running->signal(SIGTERM);
    EXPECT_EQ(running->wait(), 0);
}

TEST_F(AgentProcess, AsksTheDriverForDevices) {
    const Program running(
        {libexec + "/hold-agent", "--server", "unix:" + (base / "hold.sock").string(), "--state",
         (base / "state").string(), "--name", "n2"},
        {{"LD_LIBRARY_PATH", HOLD_TEST_DRIVER}});
    const v1::RegisterNode node = server.registration(1);
    EXPECT_EQ(node.capacity().gpus(), 3);
    EXPECT_EQ(node.capacity().gpu_type(), "h100");
    EXPECT_GE(node.capacity().cpus(), 1);
    EXPECT_GE(node.capacity().memory_bytes(), 64 << 20);
    EXPECT_EQ(node.address(), "127.0.0.1");
}

TEST_F(AgentProcess, RunsATaskAndReportsItsEnd) {
    const auto running = agent();
    v1::StartTask start = task(
        1, 10, "echo out $RANK $HOLDFAST_JOB-$HOLDFAST_TASK-$HOLDFAST_LEASE; echo err >&2; exit 3");
    (*start.mutable_env())["RANK"] = "5";
    server.start_task(start);
    const v1::TaskStatus status = server.status(1, 10, "failed");
    EXPECT_EQ(status.job(), 7);
    EXPECT_EQ(status.exit_code(), 3);
    EXPECT_EQ(status.signal(), 0);
    EXPECT_EQ(status.reason(), "exit code 3");
    EXPECT_GT(status.pid(), 1);
    EXPECT_GT(status.start_us(), 0);
    EXPECT_GE(status.end_us(), status.start_us());
    EXPECT_EQ(server.output(1, 10, "stdout", 13), "out 5 7-1-10\n");
    EXPECT_EQ(server.output(1, 10, "stderr", 4), "err\n");
    EXPECT_TRUE(is_forgotten(1, 10));
}

TEST_F(AgentProcess, OutputIsForwardedWholeAndBeforeTheEnd) {
    const auto running = agent();
    server.start_task(task(1, 10, "seq 1 200000"));
    (void)server.status(1, 10, "completed");
    std::string expected;
    for (int i = 1; i <= 200'000; ++i) {
        expected += std::to_string(i) + "\n";
    }
    EXPECT_EQ(server.output(1, 10, "stdout", 0), expected);
    EXPECT_EQ(server.log_gaps(), 0);
    EXPECT_TRUE(is_forgotten(1, 10));
}

TEST_F(AgentProcess, StartIsIdempotentByLease) {
    const auto running = agent();
    const v1::StartTask start =
        task(1, 10, "echo ran >> " + open_file("runs") + "; " + wait_for_file("go"));
    server.start_task(start);
    server.start_task(start);
    (void)server.status(1, 10, "running");
    server.start_task(start);
    std::ofstream(open_file("go")) << "";
    (void)server.status(1, 10, "completed");
    EXPECT_TRUE(is_forgotten(1, 10));
    server.start_task(start);  // the lease is over: it must not run again
    EXPECT_EQ(server.status(1, 10, "failed").reason(), "this lease has ended before");
    EXPECT_EQ(read_text(open_file("runs")), "ran\n");
}

TEST_F(AgentProcess, NewerLeaseEndsTheOlderFirst) {
    const auto running = agent();
    server.start_task(task(1, 10, "trap '' TERM; echo $$ > " + open_file("old") + "; sleep 1000"));
    (void)server.status(1, 10, "running");
    ASSERT_TRUE(eventually([&] { return !read_text(open_file("old")).empty(); }));
    // The new one records whether the old one still lives.
    server.start_task(task(
        1, 11, "if kill -0 $(cat " + open_file("old") + "); then echo both; else echo alone; fi"));
    const v1::TaskStatus old = server.status(1, 10, "cancelled");
    EXPECT_EQ(old.reason(), "lease 11 took its place");
    (void)server.status(1, 11, "completed");
    EXPECT_EQ(server.output(1, 11, "stdout", 6), "alone\n");
    // An older number never comes back.
    server.start_task(task(2, 21, "sleep 1000"));
    (void)server.status(2, 21, "running");
    server.start_task(task(2, 20, "true"));
    EXPECT_EQ(server.status(2, 20, "cancelled").reason(), "lease 21 of this task is newer");
    server.stop_task(2, 21, 0, "done");
    (void)server.status(2, 21, "cancelled");
}

TEST_F(AgentProcess, StopHonoursTheGrace) {
    const auto running = agent();
    server.start_task(task(1, 10,
                           "trap 'echo bye; exit 0' TERM; echo ready; "
                           "while :; do sleep 0.02; done"));
    server.start_task(task(2, 20, "trap '' TERM; echo ready; while :; do sleep 0.02; done"));
    EXPECT_EQ(server.output(1, 10, "stdout", 6), "ready\n");
    EXPECT_EQ(server.output(2, 20, "stdout", 6), "ready\n");
    server.stop_task(1, 10, 60'000, "cancelled by ada");
    const v1::TaskStatus polite = server.status(1, 10, "cancelled");
    EXPECT_EQ(polite.reason(), "cancelled by ada");
    EXPECT_EQ(polite.exit_code(), 0);
    EXPECT_EQ(server.output(1, 10, "stdout", 10), "ready\nbye\n");
    server.stop_task(2, 20, 100, "cancelled by ada");
    const v1::TaskStatus stubborn = server.status(2, 20, "cancelled");
    EXPECT_EQ(stubborn.signal(), SIGKILL);
    // A lease that is not here is free at once.
    server.stop_task(9, 90, 0, "revoked");
    EXPECT_EQ(server.status(9, 90, "cancelled").reason(), "it does not run on this node");
}

TEST_F(AgentProcess, FailuresToStartAreReported) {
    const auto running = agent();
    v1::StartTask start = task(1, 10, "true");
    start.set_user("no-such-user");
    server.start_task(start);
    EXPECT_NE(server.status(1, 10, "failed").reason().find("this node knows no such user"),
              std::string::npos);
    start = task(2, 20, "true");
    start.set_user("root");
    server.start_task(start);
    EXPECT_NE(server.status(2, 20, "failed").reason().find("jobs never run as root"),
              std::string::npos);
    start = task(3, 30, "true");
    start.set_workdir("relative");
    server.start_task(start);
    EXPECT_NE(server.status(3, 30, "failed").reason().find("is not absolute"), std::string::npos);
    start = task(4, 40, "true");
    (*start.mutable_env())["A=B"] = "x";
    server.start_task(start);
    EXPECT_NE(server.status(4, 40, "failed").reason().find("cannot be a variable"),
              std::string::npos);
    EXPECT_EQ(server.times_said(1, 10, "running"), 0);
    EXPECT_TRUE(is_forgotten(1, 10));
}

TEST_F(AgentProcess, KilledAgentLeavesTheTaskAndItsSuccessorReportsItOnce) {
    auto first = agent();
    server.start_task(task(1, 10, "echo before; " + wait_for_file("go") + "echo after; exit 7"));
    const pid_t pid = static_cast<pid_t>(server.status(1, 10, "running").pid());
    EXPECT_EQ(server.output(1, 10, "stdout", 7), "before\n");
    first->signal(SIGKILL);
    first->wait();
    EXPECT_TRUE(is_alive(pid));

    auto second = agent();
    const v1::RegisterNode adopted = server.registration(2);
    ASSERT_EQ(adopted.tasks_size(), 1);
    EXPECT_EQ(adopted.tasks(0).state(), "running");
    EXPECT_EQ(adopted.tasks(0).lease(), 10);
    EXPECT_EQ(adopted.tasks(0).job(), 7);
    EXPECT_EQ(adopted.tasks(0).pid(), pid);
    second->signal(SIGKILL);
    second->wait();

    // It ends while nobody watches.
    std::ofstream(open_file("go")) << "";
    EXPECT_TRUE(eventually([&] { return fs::exists(folder(1, 10) / kExitFile); }));
    const auto third = agent();
    const v1::RegisterNode ended = server.registration(3);
    ASSERT_EQ(ended.tasks_size(), 1);
    EXPECT_EQ(ended.tasks(0).state(), "failed");
    EXPECT_EQ(ended.tasks(0).exit_code(), 7);
    EXPECT_EQ(server.output(1, 10, "stdout", 13), "before\nafter\n");
    EXPECT_TRUE(is_forgotten(1, 10));
    // Once in the registration, once as a transition: acknowledged, it is not said again.
    EXPECT_EQ(server.times_said(1, 10, "failed"), 2);
    EXPECT_EQ(server.log_gaps(), 0);
}

TEST_F(AgentProcess, AdoptsARunningTaskToItsEnd) {
    auto first = agent();
    server.start_task(task(1, 10, "echo a; " + wait_for_file("go") + "echo b"));
    EXPECT_EQ(server.output(1, 10, "stdout", 2), "a\n");
    first->signal(SIGKILL);
    first->wait();
    const auto second = agent();
    (void)server.registration(2);
    std::ofstream(open_file("go")) << "";
    (void)server.status(1, 10, "completed");
    EXPECT_EQ(server.output(1, 10, "stdout", 4), "a\nb\n");
    EXPECT_TRUE(is_forgotten(1, 10));
}

TEST_F(AgentProcess, NeverAdoptsARecycledNumber) {
    auto first = agent();
    server.start_task(task(1, 10, "sleep 1000"));
    (void)server.status(1, 10, "running");
    first->signal(SIGKILL);
    first->wait();
    // As if the launcher had died and its number had passed to this test.
    LauncherRecord record = launcher_of(folder(1, 10));
    const LauncherRecord real = record;
    signal_process({.pid = real.pid, .start_ticks = real.start_ticks}, SIGKILL);
    EXPECT_TRUE(eventually([&] { return fs::exists(folder(1, 10) / kExitFile); }));
    fs::remove(folder(1, 10) / kExitFile);
    record.pid = ::getpid();
    std::ofstream(folder(1, 10) / kLauncherFile) << to_json(record);
    const auto second = agent();
    const v1::TaskStatus status = server.status(1, 10, "lost");
    EXPECT_EQ(status.reason(), "its launcher was killed, so the task was ended");
}

TEST_F(AgentProcess, SaysSoWhenTheNodeRestarted) {
    auto first = agent();
    server.start_task(task(1, 10, "sleep 1000"));
    (void)server.status(1, 10, "running");
    first->signal(SIGKILL);
    first->wait();
    LauncherRecord record = launcher_of(folder(1, 10));
    signal_process({.pid = record.pid, .start_ticks = record.start_ticks}, SIGKILL);
    EXPECT_TRUE(eventually([&] { return fs::exists(folder(1, 10) / kExitFile); }));
    fs::remove(folder(1, 10) / kExitFile);
    record.boot_id = "another-boot";
    std::ofstream(folder(1, 10) / kLauncherFile) << to_json(record);
    const auto second = agent();
    EXPECT_EQ(server.status(1, 10, "lost").reason(), "the node was restarted while the task ran");
}

TEST_F(AgentProcess, AFolderWithoutLauncherIsForgotten) {
    {
        const auto first = agent();
        (void)server.registration(1);
    }
    fs::create_directory(folder(5, 50));
    std::ofstream(folder(5, 50) / kSpecFile) << "{}";
    fs::create_directory(base / "state/tasks/strange");
    const auto second = agent();
    EXPECT_EQ(server.registration(2).tasks_size(), 0);
    EXPECT_TRUE(is_forgotten(5, 50));
    server.start_task(task(5, 50, "echo fresh"));
    (void)server.status(5, 50, "completed");
    EXPECT_EQ(server.output(5, 50, "stdout", 6), "fresh\n");
}

TEST_F(AgentProcess, KeepsTasksWhileTheServerIsAway) {
    const auto running = agent();
    server.start_task(task(1, 10, "echo a; " + wait_for_file("go1") + "echo b"));
    server.start_task(task(2, 20, "echo c; " + wait_for_file("go2") + "echo d"));
    EXPECT_EQ(server.output(1, 10, "stdout", 2), "a\n");
    EXPECT_EQ(server.output(2, 20, "stdout", 2), "c\n");
    const std::string instance = server.registration(1).instance();
    server.stop();
    std::ofstream(open_file("go1")) << "";
    EXPECT_TRUE(eventually([&] { return fs::exists(folder(1, 10) / kExitFile); }));
    server.start();
    const v1::RegisterNode again = server.registration(2);
    EXPECT_EQ(again.instance(), instance);
    ASSERT_EQ(again.tasks_size(), 2);
    EXPECT_EQ(again.tasks(0).state(), "completed");
    EXPECT_EQ(again.tasks(1).state(), "running");
    EXPECT_EQ(server.output(1, 10, "stdout", 4), "a\nb\n");
    std::ofstream(open_file("go2")) << "";
    (void)server.status(2, 20, "completed");
    EXPECT_EQ(server.output(2, 20, "stdout", 4), "c\nd\n");
    EXPECT_TRUE(is_forgotten(1, 10));
    EXPECT_TRUE(is_forgotten(2, 20));
}

TEST_F(AgentProcess, RepeatsAnEndUntilItIsAcknowledged) {
    server.behave({.acknowledge_tasks = false});
    const auto running = agent();
    server.start_task(task(1, 10, "exit 0"));
    EXPECT_TRUE(eventually([&] { return server.times_said(1, 10, "completed") >= 2; }));
    EXPECT_TRUE(fs::exists(folder(1, 10)));
}

TEST_F(AgentProcess, AServerThatFallsSilentIsLeft) {
    const auto running = agent();
    (void)server.registration(1);
    EXPECT_TRUE(eventually([&] { return server.heartbeats() >= 2; }));
    server.behave({.answer_heartbeats = false});
    const v1::RegisterNode again = server.registration(2);
    EXPECT_EQ(again.name(), "n1");
}

TEST_F(AgentProcess, KilledLauncherLosesTheTask) {
    const auto running = agent();
    server.start_task(
        task(1, 10, "setsid sleep 1000 & echo $! > " + open_file("pid") + "; sleep 1000"));
    const auto pid = static_cast<pid_t>(server.status(1, 10, "running").pid());
    ASSERT_TRUE(eventually([&] { return !read_text(open_file("pid")).empty(); }));
    ::kill(pid, SIGKILL);
    const v1::TaskStatus status = server.status(1, 10, "lost");
    EXPECT_EQ(status.signal(), SIGKILL);
    EXPECT_EQ(status.reason(), "its launcher was killed, so the task was ended");
    EXPECT_FALSE(is_alive(std::stoi(read_text(open_file("pid")))));
    EXPECT_TRUE(is_forgotten(1, 10));
}

TEST_F(AgentProcess, KilledGroupAndItsStraysAreFound) {
    const auto running = agent();
    server.start_task(
        task(1, 10, "setsid sleep 1000 & echo $! > " + open_file("pid") + "; sleep 1000"));
    const auto pid = static_cast<pid_t>(server.status(1, 10, "running").pid());
    ASSERT_TRUE(eventually([&] { return !read_text(open_file("pid")).empty(); }));
    ::kill(-pid, SIGKILL);  // launcher and supervisor at once
    (void)server.status(1, 10, "lost");
    EXPECT_FALSE(is_alive(std::stoi(read_text(open_file("pid")))))
        << "a process in a session of its own is found by its lease";
}

TEST_F(AgentProcess, StoppedAgentLeavesItsTasks) {
    auto first = agent();
    server.start_task(task(1, 10, "sleep 1000"));
    const auto pid = static_cast<pid_t>(server.status(1, 10, "running").pid());
    first->signal(SIGTERM);
    EXPECT_EQ(first->wait(), 0);
    EXPECT_TRUE(is_alive(pid));
}

TEST_F(AgentProcess, StoppedAgentEndsItsTasksWhereAsked) {
    auto first = agent({"--kill-tasks-on-exit"});
    server.start_task(task(1, 10, "sleep 1000"));
    const auto pid = static_cast<pid_t>(server.status(1, 10, "running").pid());
    first->signal(SIGTERM);
    EXPECT_EQ(first->wait(), 0);
    EXPECT_FALSE(is_alive(pid));
    EXPECT_EQ(server.status(1, 10, "cancelled").reason(), "the node's agent was stopped");
}

TEST_F(AgentProcess, TrainingWorkerGetsItsWorld) {
    // Stands for hold-train: a shell that runs the file `worker`, which prints its environment.
    const fs::path programs = base / "programs";
    fs::create_directory(programs);
    ::chmod(programs.c_str(), 0700);  // the job's user cannot even look inside
    fs::create_symlink(libexec + "/hold-launch", programs / "hold-launch");
    fs::create_symlink("/bin/sh", programs / "hold-train");
    environment["HOLDFAST_LIBEXEC"] = programs.string();
    const auto running = agent({"--address", "10.0.0.1"});
    v1::StartTask start = task(1, 10, "");
    start.set_training_worker(true);
    start.set_workdir((base / "open").string());
    std::ofstream(open_file("worker")) << "env; cat <&3 >&2";
    start.set_secret("s3cret");
    (*start.mutable_env())["HOLDFAST_WORKER"] = "0:1";
    server.start_task(start);
    (void)server.status(1, 10, "completed");
    const std::string output = server.output(1, 10, "stdout", 1);
    for (const std::string& line :
         {"HOLDFAST_SERVER=unix:" + (base / "hold.sock").string(), std::string("HOLDFAST_CA="),
          std::string("HOLDFAST_DATA_HOST=10.0.0.1"), std::string("HOLDFAST_WORKER=0:1"),
          std::string("HOLDFAST_JOB=7"), std::string("HOLDFAST_TASK=1"),
          std::string("HOLDFAST_LEASE=10"), std::string("HOLDFAST_SECRET_FD=3"),
          std::string("OMP_NUM_THREADS=1"), std::string("OPENBLAS_NUM_THREADS=1")}) {
        EXPECT_NE(("\n" + output).find("\n" + line + "\n"), std::string::npos) << line;
    }
    EXPECT_EQ(output.find("s3cret"), std::string::npos);
    EXPECT_EQ(server.output(1, 10, "stderr", 6), "s3cret");
}

TEST_F(AgentProcess, ScratchBelongsToTheJobsUser) {
    const auto running = agent();
    server.start_task(
        task(1, 10, "stat -c '%U %a' .; touch here && echo made; id -un; " + wait_for_file("go")));
    const std::string expected = job_user() + " 700\nmade\n" + job_user() + "\n";
    EXPECT_EQ(server.output(1, 10, "stdout", expected.size()), expected);
    std::ofstream(open_file("go")) << "";
    EXPECT_TRUE(is_forgotten(1, 10));
}

TEST_F(AgentProcess, JobsKeepTheLimitOfOpenFiles) {
    // The agent raises its own; a program that trusts the customary limit must not meet another.
    rlimit before = {};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
    rlimit lower = before;
    lower.rlim_cur = 300;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &lower), 0);
    const auto running = agent();
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    server.start_task(task(1, 10, "ulimit -S -n"));
    (void)server.status(1, 10, "completed");
    EXPECT_EQ(server.output(1, 10, "stdout", 4), "300\n");
    const std::string limits = read_text(fmt::format("/proc/{}/limits", running->pid()));
    EXPECT_EQ(limits.find("Max open files            300 "), std::string::npos) << limits;
}

TEST_F(AgentProcess, AFullStateDirectoryFailsTheStartAndSaysSo) {
    fs::create_directory(base / "state");
    if (::mount("tmpfs", (base / "state").c_str(), "tmpfs", 0, "size=256k,mode=0711") != 0) {
        GTEST_SKIP() << "needs the right to mount";
    }
    {
        const auto running = agent();
        (void)server.registration(1);
        std::ofstream filler(base / "state/filler");
        const std::string block(4096, 'x');
        while (filler.write(block.data(), 4096).flush()) {
        }
        server.start_task(task(1, 10, "true"));
        const v1::TaskStatus status = server.status(1, 10, "failed");
        EXPECT_NE(status.reason().find("No space left on device"), std::string::npos)
            << status.reason();
        EXPECT_NE(status.reason().find("free space on the node, or drain it"), std::string::npos)
            << status.reason();
        filler.close();  // an open file keeps its space
        fs::remove(base / "state/filler");
        server.start_task(task(2, 20, "true"));
        (void)server.status(2, 20, "completed");
    }
    EXPECT_EQ(::umount2((base / "state").c_str(), MNT_DETACH), 0);
}

TEST_F(AgentProcess, TwoAgentsOnOneStateDirectory) {
    const auto first = agent();
    (void)server.registration(1);
    const auto second = agent();
    EXPECT_EQ(second->wait(), 5);
    EXPECT_NE(read_text(base / "agent.log").find("another agent runs on the state directory"),
              std::string::npos);
}

TEST_F(AgentProcess, ATakenNameIsFinal) {
    server.behave({.refuse_code = "conflict"});
    const auto running = agent();
    EXPECT_EQ(running->wait(), 5);
    EXPECT_NE(read_text(base / "agent.log").find("another agent holds this name"),
              std::string::npos);
}

TEST_F(AgentProcess, EnrolsOnceAndKeepsTheToken) {
    server.behave({.enrolment_token = "once", .node_token = "hf_node"});
    std::ofstream(base / "once") << "once\n";
    {
        const auto first = agent({"--enrolment-token-file", (base / "once").string()});
        (void)server.registration(1);
    }
    struct stat facts = {};
    ASSERT_EQ(::stat((base / "state/node.token").c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 07777, 0600U);
    {
        const auto second = agent();
        (void)server.registration(2);
    }
    const auto stranger =
        agent({"--enrolment-token-file", (base / "once").string()}, "other-state");
    EXPECT_EQ(stranger->wait(), 4);
    EXPECT_EQ(read_text(base / "agent.log").find("hf_node"), std::string::npos);
}

TEST_F(AgentProcess, BadFlagsAreNamed) {
    const auto bad = agent({"--log-level", "loud"}, "s2");
    EXPECT_EQ(bad->wait(), 2);
    EXPECT_NE(read_text(base / "agent.log").find("loud"), std::string::npos);
    const auto size =
        Program({libexec + "/hold-agent", "--state", (base / "s4").string(), "--memory", "lots"},
                {}, -1, (base / "size.log").string())
            .wait();
    EXPECT_EQ(size, 2);
    EXPECT_NE(read_text(base / "size.log").find("`lots` is not a size (at --memory)"),
              std::string::npos);
    const auto unknown = agent({"--surprise"}, "s3");
    EXPECT_EQ(unknown->wait(), 2);
}

}  // namespace
}  // namespace holdfast::agent
