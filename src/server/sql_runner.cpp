// SPDX-License-Identifier: Apache-2.0
#include "sql_runner.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace holdfast::server {
namespace {

/// What the process has above the statement's own time: to start, and to answer that it ran out.
constexpr std::int64_t kSlackUs = 2 * kSecondUs;
constexpr std::size_t kBytesMax = sql::kAnswerBytesMax + (1 << 20);

/// An open descriptor; closed when it goes.
class Descriptor {
  public:
    explicit Descriptor(int fd = -1) : fd_(fd) {}

    Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }

    ~Descriptor() { reset(); }

    void reset() {
        if (fd_ >= 0) {
            close(std::exchange(fd_, -1));
        }
    }

    [[nodiscard]] int get() const { return fd_; }

  private:
    int fd_;
};

struct Pipe {
    Descriptor read;
    Descriptor write;
};

Result<Pipe> make_pipe() {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) {
        return fail(
            make_error(Errc::unavailable, "make a pipe to hold-sql: errno {}", errno).may_retry());
    }
    return Pipe{Descriptor(ends[0]), Descriptor(ends[1])};
}

struct Child {
    pid_t pid = -1;
    Descriptor input;
    Descriptor output;
    Child() = default;

    Child(Child&& other) noexcept
        : pid(std::exchange(other.pid, -1)),
          input(std::move(other.input)),
          output(std::move(other.output)) {}

    Child& operator=(Child&&) = delete;

    ~Child() {
        if (pid > 0) {
            kill(pid, SIGKILL);  // no effect on one that has ended and was not yet waited for
            while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
            }
        }
    }
};

Result<Child> spawn(const std::string& program, std::array<std::string, 5> arguments) {
    HOLD_TRY(Pipe input, make_pipe());
    HOLD_TRY(Pipe output, make_pipe());
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, input.read.get(), STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, output.write.get(), STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t none;
    sigemptyset(&none);
    sigset_t all;
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    std::array<char*, 6> argv{};
    for (std::size_t i = 0; i < arguments.size(); ++i) {
        argv[i] = arguments[i].data();
    }
    std::array<char*, 1> environment{};  // nothing of ours: it may hold secrets
    Child child;
    const int code = posix_spawn(&child.pid, program.c_str(), &actions, &attributes, argv.data(),
                                 environment.data());
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (code != 0) {
        child.pid = -1;
        return fail(make_error(Errc::unavailable, "start {}: errno {}", program, code)
                        .advise("is Holdfast installed whole? hold-sql belongs to libexec"));
    }
    child.input = std::move(input.write);
    child.output = std::move(output.read);
    return child;
}

/// Feeds the statement and collects the answer. Reading goes on while we write: neither side can
/// wait for the other.
Result<std::string> talk(Env& env, Child& child, const std::string& statement,
                         std::int64_t deadline_us, std::int64_t timeout_ms,
                         const std::atomic<bool>& stopping) {
    constexpr std::int64_t kLookUs = 100'000;  // how soon a stopping server is noticed
    fcntl(child.input.get(), F_SETFL, O_NONBLOCK);
    std::string_view rest = statement;
    std::string answer;
    std::array<char, 65536> buffer{};
    while (true) {
        const std::int64_t left_us = deadline_us - env.clock.steady_us();
        if (stopping) {
            return fail(make_error(Errc::unavailable, "the server is stopping").may_retry());
        }
        if (left_us <= 0) {
            return fail(Errc::timed_out, "the statement ran longer than {} ms", timeout_ms);
        }
        std::array<pollfd, 2> watched = {pollfd{child.output.get(), POLLIN, 0},
                                         pollfd{rest.empty() ? -1 : child.input.get(), POLLOUT, 0}};
        if (rest.empty()) {
            child.input.reset();
        }
        poll(watched.data(), watched.size(),
             static_cast<int>(std::min(left_us, kLookUs) / 1000 + 1));
        if (watched[1].revents != 0) {
            const ssize_t count = write(child.input.get(), rest.data(), rest.size());
            if (count < 0 && errno != EAGAIN) {
                rest = {};  // it ended early; its answer says why
            } else if (count > 0) {
                rest.remove_prefix(static_cast<std::size_t>(count));
            }
        }
        if (watched[0].revents != 0) {
            const ssize_t count = read(child.output.get(), buffer.data(), buffer.size());
            if (count <= 0) {
                return answer;
            }
            answer.append(buffer.data(), static_cast<std::size_t>(count));
            if (answer.size() > kBytesMax) {
                return fail(Errc::internal, "hold-sql wrote more than it may");
            }
        }
    }
}

}  // namespace

Result<sql::Answer> SqlRunner::run(const std::string& statement, std::int64_t rows_max,
                                   std::int64_t timeout_ms, bool restricted) {
    if (statement.size() > sql::kStatementBytesMax) {
        return fail(make_error(Errc::too_large,
                               "the statement has {} bytes; at most {} are allowed",
                               statement.size(), sql::kStatementBytesMax)
                        .at("sql"));
    }
    if (statement.find('\0') != std::string::npos) {
        return fail(
            make_error(Errc::invalid_argument, "the statement holds a zero byte").at("sql"));
    }
    if (rows_max < 0 || rows_max > sql::kRowsMax) {
        return fail(make_error(Errc::invalid_argument, "{} rows: at most {} are allowed", rows_max,
                               sql::kRowsMax)
                        .at("rows_max"));
    }
    if (timeout_ms < 0 || timeout_ms > sql::kTimeoutMsMax) {
        return fail(make_error(Errc::invalid_argument, "{} ms: at most {} are allowed", timeout_ms,
                               sql::kTimeoutMsMax)
                        .at("timeout_ms"));
    }
    rows_max = rows_max == 0 ? sql::kRowsDefault : rows_max;
    timeout_ms = timeout_ms == 0 ? sql::kTimeoutMsDefault : timeout_ms;

    struct Place {
        std::atomic<int>& count;
        int before;

        explicit Place(std::atomic<int>& running) : count(running), before(running++) {}

        ~Place() { --count; }
    } const place(running_);

    if (place.before >= kAtOnceMax) {
        return fail(make_error(Errc::unavailable, "{} statements run already", kAtOnceMax)
                        .advise("try again in a moment")
                        .may_retry());
    }
    HOLD_TRY(Child child,
             spawn(program_, {program_, database_, std::to_string(rows_max),
                              std::to_string(timeout_ms), restricted ? "restricted" : "open"}));
    const std::int64_t deadline_us = env_.clock.steady_us() + timeout_ms * 1000 + kSlackUs;
    HOLD_TRY(const std::string bytes,
             talk(env_, child, statement, deadline_us, timeout_ms, stopping_));
    if (bytes.empty()) {
        return fail(Errc::too_large,
                    "the process that ran the statement died: it needs more memory or time than "
                    "it may have");
    }
    return sql::parse_answer(bytes);
}

}  // namespace holdfast::server
