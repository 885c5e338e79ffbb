// SPDX-License-Identifier: Apache-2.0
#include "process_tree.hpp"

#include <csignal>

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

namespace holdfast::agent {
namespace {

/// A child that waits for a signal; killed and collected at the end.
class Child {
  public:
    Child() : pid(::fork()) {
        if (pid == 0) {
            ::pause();
            ::_exit(0);
        }
    }

    ~Child() {
        ::kill(pid, SIGKILL);
        ::waitpid(pid, nullptr, 0);
    }

    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;

    const pid_t pid;
};

TEST(ProcessStat, CommandMayHoldAnything) {
    const auto process = parse_process_stat(
        "42 (a) b (c) R 7) S 7 42 41 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 123456 9 10\n");
    ASSERT_TRUE(process);
    EXPECT_EQ(process->pid, 42);
    EXPECT_EQ(process->state, 'S');
    EXPECT_EQ(process->parent, 7);
    EXPECT_EQ(process->group, 42);
    EXPECT_EQ(process->session, 41);
    EXPECT_EQ(process->start_ticks, 123456U);
}

TEST(ProcessStat, RefusesOtherText) {
    for (const char* const bad : {"", "x", "42", "42 (sh", "42 (sh) S 1 2", "x (sh) S 1 2 3 4",
                                  "42 (sh) S 7 42 41 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 x 9"}) {
        EXPECT_FALSE(parse_process_stat(bad)) << bad;
    }
}

TEST(ProcessStat, Oneself) {
    const auto self = read_process(::getpid());
    ASSERT_TRUE(self);
    EXPECT_EQ(self->parent, ::getppid());
    EXPECT_EQ(self->group, ::getpgrp());
    EXPECT_EQ(self->session, ::getsid(0));
    EXPECT_EQ(self->uid, ::geteuid());
    EXPECT_TRUE(self->is_running());
    EXPECT_FALSE(read_process(0));
}

TEST(ProcessTree, DescendantsOfASnapshot) {
    const std::vector<Process> all = {{.pid = 1, .parent = 0}, {.pid = 2, .parent = 1},
                                      {.pid = 3, .parent = 2}, {.pid = 4, .parent = 3},
                                      {.pid = 5, .parent = 1}, {.pid = 6, .parent = 6}};
    std::vector<pid_t> found;
    for (const Process& process : descendants_of(2, all)) {
        found.push_back(process.pid);
    }
    EXPECT_EQ(found, (std::vector<pid_t>{3, 4}));
    EXPECT_TRUE(descendants_of(6, all).empty());
    EXPECT_TRUE(descendants_of(99, all).empty());
}

TEST(ProcessTree, FindsARealChild) {
    const Child child;
    bool found = false;
    for (const Process& process : descendants_of(::getpid(), all_processes())) {
        found = found || process.pid == child.pid;
    }
    EXPECT_TRUE(found);
}

TEST(OpenProcess, NeverAnotherOfTheSameNumber) {
    const Child child;
    const auto process = read_process(child.pid);
    ASSERT_TRUE(process);
    EXPECT_TRUE(open_process(child.pid, process->start_ticks).is_open());
    // As if the number had been used again.
    EXPECT_FALSE(open_process(child.pid, process->start_ticks + 1).is_open());
    EXPECT_FALSE(
        signal_process({.pid = child.pid, .start_ticks = process->start_ticks + 1}, SIGKILL));
    EXPECT_EQ(::waitpid(child.pid, nullptr, WNOHANG), 0) << "the child must live";
    EXPECT_FALSE(open_process(0, 0).is_open());
    EXPECT_FALSE(open_process(-1, 0).is_open());
}

TEST(OpenProcess, ZombiesAreGone) {
    const pid_t pid = ::fork();
    if (pid == 0) {
        ::_exit(0);
    }
    const Fd handle = open_pidfd(pid);
    pollfd ended = {handle.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&ended, 1, 10'000), 1);
    const auto process = read_process(pid);
    ASSERT_TRUE(process);
    EXPECT_EQ(process->state, 'Z');
    EXPECT_FALSE(open_process(pid, process->start_ticks).is_open());
    ::waitpid(pid, nullptr, 0);
}

TEST(Environment, WholeEntriesOnly) {
    // What the kernel shows is the environment at exec: our own.
    ASSERT_NE(::environ[0], nullptr);
    const std::string entry = ::environ[0];
    EXPECT_TRUE(has_environment(::getpid(), {entry}));
    EXPECT_FALSE(has_environment(::getpid(), {entry + "x"}));
    EXPECT_FALSE(has_environment(::getpid(), {entry, "HOLDFAST_NO_SUCH=1"}));
    EXPECT_FALSE(has_environment(::getpid(), {entry.substr(1)}));
    EXPECT_FALSE(has_environment(::getpid(), {}));
}

TEST(BootId, IsThere) {
    EXPECT_EQ(boot_id().size(), 36U);
    EXPECT_EQ(boot_id(), boot_id());
}

}  // namespace
}  // namespace holdfast::agent
