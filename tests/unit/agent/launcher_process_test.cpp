// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <fstream>

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "process_fixture.hpp"
#include "process_tree.hpp"

namespace holdfast::agent {
namespace {

namespace fs = std::filesystem;

using LauncherProcess = ProcessTest;

/// The process ids that a job wrote, one a line, into `name` of its scratch folder.
std::vector<pid_t> pids_in(const fs::path& folder, const std::string& name, std::size_t count) {
    std::vector<pid_t> pids;
    EXPECT_TRUE(eventually([&] {
        pids.clear();
        std::ifstream file(folder / kScratchFolder / name);
        pid_t pid = 0;
        while (file >> pid) {
            pids.push_back(pid);
        }
        return pids.size() >= count;
    }));
    return pids;
}

/// A job with a plain child, a child in a session of its own, and a daemon forked twice.
constexpr const char* kFamily =
    "sleep 1000 & echo $! >> pids; setsid sh -c 'echo $$ >> pids; exec sleep 1000' & "
    "(setsid sh -c 'sleep 1000 & echo $! >> pids' &); echo $$ >> pids; "
    "while [ $(wc -l < pids) -lt 4 ]; do sleep 0.01; done; ";

bool all_gone(const std::vector<pid_t>& pids) {
    for (const pid_t pid : pids) {
        if (is_alive(pid)) {
            return false;
        }
    }
    return true;
}

TEST_F(LauncherProcess, CapturesOutputAndExitCodeExactly) {
    const fs::path folder =
        task_folder({.run = "printf 'a\\0b\\n'; printf 'no newline' >&2; exit 3"});
    const ExitRecord record = run(folder);
    EXPECT_EQ(record.state, "failed");
    EXPECT_EQ(record.exit_code, 3);
    EXPECT_EQ(record.signal, 0);
    EXPECT_EQ(record.reason, "exit code 3");
    EXPECT_GT(record.start_us, 0);
    EXPECT_GE(record.end_us, record.start_us);
    EXPECT_EQ(read_text(folder / kStdoutFile), std::string("a\0b\n", 4));
    EXPECT_EQ(read_text(folder / kStderrFile), "no newline");
    EXPECT_EQ(read_text(folder / kLauncherLogFile), "");
}

TEST_F(LauncherProcess, LargeOutputIsWhole) {
    const fs::path folder = task_folder({.run = "seq 1 200000"});
    EXPECT_EQ(run(folder).state, "completed");
    std::string expected;
    for (int i = 1; i <= 200'000; ++i) {
        expected += std::to_string(i) + "\n";
    }
    EXPECT_EQ(read_text(folder / kStdoutFile), expected);
}

TEST_F(LauncherProcess, SignalIsReported) {
    const ExitRecord record = run(task_folder({.run = "kill -SEGV $$"}));
    EXPECT_EQ(record.state, "failed");
    EXPECT_EQ(record.exit_code, 128 + SIGSEGV);
    EXPECT_EQ(record.signal, SIGSEGV);
    EXPECT_EQ(record.reason, "ended by signal 11 (Segmentation fault)");
}

TEST_F(LauncherProcess, EnvironmentIsExactlyWhatWasGiven) {
    // `env -0` of a program that is not a shell: a shell adds variables of its own.
    const fs::path folder =
        task_folder({.program = "/usr/bin/env", .env = {{"RANK", "3"}, {"PATH", "/usr/bin:/bin"}}});
    EXPECT_EQ(run(folder).state, "completed");
    std::vector<std::string> names;
    std::istringstream lines(read_text(folder / kStdoutFile));
    for (std::string line; std::getline(lines, line);) {
        names.push_back(line.substr(0, line.find('=')));
    }
    EXPECT_EQ(names,
              (std::vector<std::string>{"HOME", "LOGNAME", "PATH", "RANK", "SHELL", "USER"}));
}

TEST_F(LauncherProcess, RunsAsTheJobsUserWithNothingElse) {
    const fs::path folder = task_folder(
        {.run = "id -u; id -G; umask; ulimit -c; pwd; grep -E '^(Cap|NoNewPrivs|SigBlk|SigIgn)' "
                "/proc/self/status; ls /proc/self/fd; echo reopened > /dev/stderr"});
    EXPECT_EQ(run(folder).state, "completed");
    const std::string output = read_text(folder / kStdoutFile);
    SCOPED_TRACE(output);
    const bool root = ::geteuid() == 0;
    const std::string id = root ? "65534\n65534\n" : std::to_string(::geteuid()) + "\n";
    EXPECT_EQ(output.substr(0, id.size()), id);
    // The golden lines: what a job may ever hold.
    std::string golden = "0022\n0\n" + (folder / kScratchFolder).string() +
                         "\n"
                         "SigBlk:\t0000000000000000\n"
                         "SigIgn:\t0000000000000000\n"
                         "CapInh:\t0000000000000000\n"
                         "CapPrm:\t0000000000000000\n"
                         "CapEff:\t0000000000000000\n";
    if (root) {
        golden += "CapBnd:\t0000000000000000\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\n";
        golden += "0\n1\n2\n3\n";  // 3: the listing itself
        EXPECT_EQ(output.substr(id.size()), golden);
    } else {
        EXPECT_NE(output.find(golden), std::string::npos);
        EXPECT_NE(output.find("NoNewPrivs:\t1\n0\n1\n2\n3\n"), std::string::npos);
    }
    EXPECT_EQ(read_text(folder / kStderrFile), "reopened\n");
}

TEST_F(LauncherProcess, RefusesRoot) {
    for (const char* const user : {"root", "0"}) {
        const fs::path folder =
            task_folder({.user = user, .run = "touch " + (base / "ran").string()});
        const ExitRecord record = run(folder);
        EXPECT_EQ(record.state, "failed");
        EXPECT_EQ(record.exit_code, 126);
        EXPECT_EQ(record.start_us, 0);
        EXPECT_NE(record.reason.find("jobs never run as root (uid 0)"), std::string::npos)
            << record.reason;
        EXPECT_FALSE(fs::exists(base / "ran"));
    }
}

TEST_F(LauncherProcess, FailuresToStartSayWhatAndWhatToDo) {
    const ExitRecord user = run(task_folder({.user = "no-such-user", .run = "true"}));
    EXPECT_EQ(user.state, "failed");
    EXPECT_EQ(user.reason,
              "run as no-such-user: this node knows no such user (at user); create the user on the "
              "node, or exclude the node from the job");
    const ExitRecord folder = run(task_folder({.run = "true", .workdir = "/no/such/folder"}));
    EXPECT_EQ(folder.state, "failed");
    EXPECT_EQ(folder.exit_code, 126);
    EXPECT_EQ(folder.reason,
              fmt::format("could not enter the working folder /no/such/folder as user {}: No such "
                          "file or directory; make it on this node, or change `workdir`",
                          job_user()));
    const ExitRecord program = run(task_folder({.program = "/no/such/program"}));
    EXPECT_EQ(program.state, "failed");
    EXPECT_NE(program.reason.find("could not open the program /no/such/program: No such file"),
              std::string::npos);
    std::ofstream(base / "text") << "not a program";
    ::chmod((base / "text").c_str(), 0755);
    const ExitRecord exec = run(task_folder({.program = (base / "text").string()}));
    EXPECT_EQ(exec.state, "failed");
    EXPECT_NE(exec.reason.find("Exec format error"), std::string::npos) << exec.reason;
}

TEST_F(LauncherProcess, ProgramMayLieWhereTheUserCannotGo) {
    fs::create_directory(base / "closed");
    fs::copy_file("/bin/cat", base / "closed/hold-train");
    ::chmod((base / "closed").c_str(), 0700);
    const fs::path folder = task_folder({.program = (base / "closed/hold-train").string()});
    const ExitRecord record = run(folder);
    EXPECT_EQ(record.state, "completed") << record.reason;
}

TEST_F(LauncherProcess, SecretArrivesByDescriptorOnly) {
    // The quotes keep the secret itself out of the text.
    const fs::path folder =
        task_folder({.run = "echo fd $HOLDFAST_SECRET_FD; cat <&3; echo; "
                            "grep -c s3''cret /proc/$$/environ; grep -c s3''cret /proc/$$/cmdline",
                     .has_secret = true});
    int ends[2] = {-1, -1};
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    ASSERT_EQ(::write(ends[1], "s3cret", 6), 6);
    ::close(ends[1]);
    Program launcher({libexec + "/hold-launch", folder.string(), "secret"}, {}, ends[0]);
    ::close(ends[0]);
    EXPECT_EQ(launcher.wait(), 0);
    EXPECT_EQ(read_text(folder / kStdoutFile), "fd 3\ns3cret\n0\n0\n");
    EXPECT_EQ(read_text(folder / kSpecFile).find("s3cret"), std::string::npos);
}

TEST_F(LauncherProcess, NothingOutlivesTheTask) {
    const fs::path folder = task_folder({.run = std::string(kFamily) + "exit 0"});
    const ExitRecord record = run(folder);
    EXPECT_EQ(record.state, "completed");
    const auto pids = pids_in(folder, "pids", 4);
    EXPECT_EQ(pids.size(), 4U);
    EXPECT_TRUE(all_gone(pids)) << "the record says that none is left";
}

TEST_F(LauncherProcess, KillingTheLauncherEndsTheTask) {
    const fs::path folder =
        task_folder({.run = "echo said; " + std::string(kFamily) + "sleep 1000"});
    Program launcher({libexec + "/hold-launch", folder.string()});
    const auto pids = pids_in(folder, "pids", 4);
    EXPECT_EQ(launcher_of(folder).pid, launcher.pid());
    launcher.signal(SIGKILL);
    EXPECT_EQ(launcher.wait(), 128 + SIGKILL);
    EXPECT_TRUE(eventually([&] { return fs::exists(folder / kExitFile); }));
    const ExitRecord record = record_of(folder);
    EXPECT_EQ(record.state, "lost");
    EXPECT_EQ(record.signal, SIGKILL);
    EXPECT_EQ(record.reason, "its launcher was killed, so the task was ended");
    EXPECT_TRUE(all_gone(pids));
    EXPECT_EQ(read_text(folder / kStdoutFile), "said\n");
}

TEST_F(LauncherProcess, KillingTheSupervisorEndsTheTask) {
    const fs::path folder = task_folder({.run = std::string(kFamily) + "sleep 1000"});
    Program launcher({libexec + "/hold-launch", folder.string()});
    const auto pids = pids_in(folder, "pids", 4);
    (void)launcher_of(folder);
    for (const Process& process : descendants_of(launcher.pid(), all_processes())) {
        if (process.parent == launcher.pid()) {
            ::kill(process.pid, SIGKILL);
        }
    }
    EXPECT_EQ(launcher.wait(), 0);
    const ExitRecord record = record_of(folder);
    EXPECT_EQ(record.state, "lost");
    EXPECT_EQ(record.signal, SIGKILL);
    EXPECT_GT(record.start_us, 0);
    EXPECT_TRUE(all_gone(pids));
}

TEST_F(LauncherProcess, KillingTheWholeGroupEndsTheJob) {
    const fs::path folder = task_folder({.run = "echo $$ >> pids; sleep 1000"});
    Program launcher({libexec + "/hold-launch", folder.string()});
    const auto pids = pids_in(folder, "pids", 1);
    const auto job = read_process(pids.at(0));
    ASSERT_TRUE(job);
    EXPECT_EQ(job->group, launcher.pid());
    EXPECT_EQ(job->session, launcher.pid());
    ::kill(-launcher.pid(), SIGKILL);
    EXPECT_TRUE(eventually([&] { return all_gone(pids); }));
}

TEST_F(LauncherProcess, TimeLimitHoldsWithoutAnAgent) {
    const ExitRecord record =
        run(task_folder({.run = "exec sleep 1000", .time_limit_ms = 100, .grace_ms = 60'000}));
    EXPECT_EQ(record.state, "timeout");
    EXPECT_EQ(record.signal, SIGTERM);
    EXPECT_EQ(record.reason, "ran longer than its time limit of 0.1 s");
    EXPECT_GE(record.end_us - record.start_us, 100'000);
}

TEST_F(LauncherProcess, GraceEndsInSigkill) {
    const ExitRecord record = run(task_folder({.run = "trap '' TERM; while :; do sleep 0.05; done",
                                               .time_limit_ms = 50,
                                               .grace_ms = 100}));
    EXPECT_EQ(record.state, "timeout");
    EXPECT_EQ(record.signal, SIGKILL);
}

TEST_F(LauncherProcess, StopRequestNamesReasonAndGrace) {
    const fs::path folder = task_folder(
        {.run = "trap 'echo bye; exit 0' TERM; echo $$ >> pids; while :; do sleep 0.05; done"});
    Program launcher({libexec + "/hold-launch", folder.string()});
    (void)pids_in(folder, "pids", 1);
    const Fd open(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ASSERT_TRUE(write_at(open.get(), kStopFile, to_json(StopRequest{60'000, "because"}), false));
    launcher.signal(SIGTERM);
    EXPECT_EQ(launcher.wait(), 0);
    const ExitRecord record = record_of(folder);
    EXPECT_EQ(record.state, "cancelled");
    EXPECT_EQ(record.reason, "because");
    EXPECT_EQ(record.exit_code, 0);
    EXPECT_EQ(read_text(folder / kStdoutFile), "bye\n");
}

TEST_F(LauncherProcess, AJobThatSignalsItsGroupDoesNotStopItself) {
    const ExitRecord record = run(task_folder(
        {.run = "trap '' TERM USR1 HUP INT; kill 0; kill -USR1 0; kill -HUP 0; sleep 0.2; exit 0",
         .grace_ms = 10}));
    EXPECT_EQ(record.state, "completed") << record.reason;
}

TEST_F(LauncherProcess, SecondLauncherIsRefused) {
    const fs::path folder = task_folder({.run = "echo once >> runs"});
    EXPECT_EQ(run(folder).state, "completed");
    Program again({libexec + "/hold-launch", folder.string()});
    EXPECT_EQ(again.wait(), 1);
    EXPECT_EQ(read_text(folder / kScratchFolder / "runs"), "once\n");
}

TEST_F(LauncherProcess, TornSpecIsReported) {
    const fs::path folder = task_folder({.run = "true"});
    std::ofstream(folder / kSpecFile) << "{\"task\": 1";
    const ExitRecord record = run(folder);
    EXPECT_EQ(record.state, "failed");
    EXPECT_EQ(record.reason, "spec.json is not a JSON object");
}

TEST_F(LauncherProcess, AJobCannotReachTheFilesAboutIt) {
    if (::geteuid() != 0) {
        GTEST_SKIP() << "only another user is kept out";
    }
    std::ofstream(base / "victim") << "untouched";
    fs::create_directory(base / "elsewhere");
    const std::string victim = (base / "victim").string();
    const fs::path folder =
        task_folder({.run = "cd ..; ln -sf " + victim +
                            " stdout; rm -f stdout spec.json exit.json; "
                            "ln -s " +
                            victim +
                            " exit.json; mv scratch gone; rmdir scratch; cat spec.json; "
                            "ln -s " +
                            (base / "elsewhere").string() + " more; echo end; exit 0"});
    const ExitRecord record = run(folder);
    EXPECT_EQ(record.state, "completed");
    EXPECT_EQ(read_text(folder / kStdoutFile), "end\n");
    EXPECT_EQ(read_text(base / "victim"), "untouched");
    EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(folder / kStdoutFile)));
    EXPECT_TRUE(fs::is_directory(fs::symlink_status(folder / kScratchFolder)));
    EXPECT_FALSE(fs::exists(folder / "more"));
}

TEST_F(LauncherProcess, APlantedLogFileIsNotOpened) {
    std::ofstream(base / "victim") << "untouched";
    const fs::path folder = task_folder({.run = "echo overwritten"});
    fs::create_symlink(base / "victim", folder / kStdoutFile);
    const ExitRecord record = run(folder);
    EXPECT_EQ(record.state, "failed");
    EXPECT_EQ(read_text(base / "victim"), "untouched");
}

TEST_F(LauncherProcess, AFullDiskLosesOutputAndNotTheTask) {
    const fs::path disk = base / "disk";
    fs::create_directory(disk);
    if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=128k") != 0) {
        GTEST_SKIP() << "needs the right to mount";
    }
    ::chmod(disk.c_str(), 0711);
    const fs::path folder = disk / "9-1";
    fs::create_directory(folder);
    {
        const Fd open(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        const LaunchSpec spec = {.task = 9,
                                 .job = 1,
                                 .lease = 1,
                                 .user = job_user(),
                                 .run = "seq 1 100000; exit 5",
                                 .workdir = "/"};
        ASSERT_TRUE(write_at(open.get(), kSpecFile, to_json(spec), false));
    }
    const ExitRecord record = run(folder);
    EXPECT_EQ(record.state, "failed");
    EXPECT_EQ(record.exit_code, 5) << "the job went on to its own end";
    EXPECT_GT(record.lost_bytes, 0);
    EXPECT_NE(record.reason.find("bytes of output were lost: the node's disk took no more"),
              std::string::npos)
        << record.reason;
    EXPECT_EQ(::umount2(disk.c_str(), MNT_DETACH), 0);
}

}  // namespace
}  // namespace holdfast::agent
