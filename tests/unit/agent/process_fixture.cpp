// SPDX-License-Identifier: Apache-2.0
#include "process_fixture.hpp"

#include <csignal>
#include <fstream>
#include <sstream>

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <holdfast/env.hpp>

#include "process_tree.hpp"

namespace holdfast::agent {

namespace fs = std::filesystem;

std::string job_user() {
    if (::geteuid() == 0) {
        return "nobody";
    }
    const passwd* const entry = ::getpwuid(::geteuid());
    return entry != nullptr ? entry->pw_name : std::to_string(::geteuid());
}

bool eventually(const std::function<bool()>& condition) {
    for (int i = 0; i < 6000; ++i) {
        if (condition()) {
            return true;
        }
        real_env().clock.sleep_us(5'000);
    }
    return false;
}

std::string read_text(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

bool is_alive(pid_t pid) {
    const auto process = read_process(pid);
    return process && process->is_running();
}

Program::Program(const std::vector<std::string>& arguments,
                 const std::map<std::string, std::string>& extra_environment, int secret_from,
                 const std::string& errors_to) {
    std::vector<std::string> words = arguments;
    std::vector<std::string> entries = {"PATH=/usr/bin:/bin"};
    for (const char* const name : {"ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"}) {
        if (const auto value = environment_variable(name)) {
            entries.push_back(std::string(name) + "=" + *value);
        }
    }
    for (const auto& [name, value] : extra_environment) {
        entries.push_back(name + "=" + value);
    }
    std::vector<char*> argv;
    for (std::string& word : words) {
        argv.push_back(word.data());
    }
    argv.push_back(nullptr);
    std::vector<char*> envp;
    for (std::string& entry : entries) {
        envp.push_back(entry.data());
    }
    envp.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
        ::setsid();
        const int null = ::open("/dev/null", O_RDWR);
        const int errors = ::open(errors_to.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
        ::dup2(null, 0);
        ::dup2(null, 1);
        ::dup2(errors, 2);
        if (secret_from >= 0) {
            ::dup2(secret_from, kSecretFd);
        }
        ::execve(argv[0], argv.data(), envp.data());
        ::_exit(127);
    }
}

Program::~Program() {
    if (!ended_) {
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
    }
}

void Program::signal(int number) const {
    if (!ended_) {
        ::kill(pid_, number);
    }
}

int Program::wait() {
    const bool ended =
        ended_ || eventually([this] {
            siginfo_t info = {};
            if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG) != 0 ||
                info.si_pid == 0) {
                return false;
            }
            code_ = info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
            ended_ = true;
            return true;
        });
    EXPECT_TRUE(ended) << "the program does not end";
    return code_;
}

ProcessTest::ProcessTest() {
    char name[] = "/tmp/holdfast_agent_XXXXXX";
    base = ::mkdtemp(name);
    ::chmod(base.c_str(), 0711);
}

ProcessTest::~ProcessTest() {
    // Tasks outlive their agents on purpose, but not this test.
    std::vector<LauncherRecord> launchers;
    for (auto entry =
             fs::recursive_directory_iterator(base, fs::directory_options::skip_permission_denied);
         entry != fs::recursive_directory_iterator(); ++entry) {
        if (entry->path().filename() == kLauncherFile) {
            if (const auto record = launcher_record_from(read_text(entry->path()))) {
                launchers.push_back(*record);
            }
        }
    }
    for (const LauncherRecord& launcher : launchers) {
        signal_process({.pid = launcher.pid, .start_ticks = launcher.start_ticks}, SIGKILL);
    }
    for (const LauncherRecord& launcher : launchers) {
        EXPECT_TRUE(eventually([&] {
            for (const Process& process : all_processes()) {
                if (process.session == launcher.pid && process.is_running()) {
                    return false;
                }
            }
            return true;
        }));
    }
    std::error_code ignored;
    fs::remove_all(base, ignored);
}

fs::path ProcessTest::task_folder(LaunchSpec spec) {
    spec.task = next_task++;
    spec.job = 1;
    spec.lease = 1;
    if (spec.user.empty()) {
        spec.user = job_user();
    }
    const fs::path folder = base / fmt::format("{}-1", spec.task);
    fs::create_directory(folder);
    ::chmod(folder.c_str(), 0711);
    const Fd open(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    EXPECT_TRUE(write_at(open.get(), kSpecFile, to_json(spec), false));
    return folder;
}

ExitRecord ProcessTest::run(const fs::path& folder) {
    Program launcher({libexec + "/hold-launch", folder.string()});
    EXPECT_EQ(launcher.wait(), 0);
    return record_of(folder);
}

ExitRecord ProcessTest::record_of(const fs::path& folder) {
    const auto record = exit_record_from(read_text(folder / kExitFile));
    EXPECT_TRUE(record) << folder;
    return record.value_or(ExitRecord{});
}

LauncherRecord ProcessTest::launcher_of(const fs::path& folder) {
    LauncherRecord found;
    EXPECT_TRUE(eventually([&] {
        const auto record = launcher_record_from(read_text(folder / kLauncherFile));
        found = record.value_or(LauncherRecord{});
        return record && record->start_us != 0;
    })) << folder;
    return found;
}

}  // namespace holdfast::agent
