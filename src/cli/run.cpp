// SPDX-License-Identifier: Apache-2.0
// `hold run`: a job as if it were a command here. Ctrl-C cancels it, a second one leaves it.
#include <atomic>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <thread>

#include <unistd.h>

#include "job_flags.hpp"
#include "job_ref.hpp"
#include "json.hpp"
#include "log_printer.hpp"
#include "text.hpp"
#include "verbs.hpp"
#include "waiting.hpp"

namespace holdfast::cli {
namespace {

constexpr std::size_t kKeyBytes = 16;
constexpr int kSignalBase = 128;
constexpr int kExitMax = 255;
constexpr std::int64_t kSignalPollNs = 200'000'000;

struct Options {
    JobFlags job;
    std::vector<std::string> command;
    bool no_prefix = false;
};

/// Turns SIGINT, SIGTERM and SIGHUP into a cancel of the job. Made before the client, so that
/// every thread inherits the blocked signals and only ours takes them.
class Interrupts {
  public:
    explicit Interrupts(Session& session) : session_(session) {
        sigemptyset(&signals_);
        for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
            sigaddset(&signals_, signal);
        }
        pthread_sigmask(SIG_BLOCK, &signals_, &before_);
    }

    ~Interrupts() {
        stop_ = true;
        if (thread_.joinable()) {
            thread_.join();
        }
        pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }

    Interrupts(const Interrupts&) = delete;
    Interrupts& operator=(const Interrupts&) = delete;

    /// From now on a signal cancels this job.
    void watch(Client& client, std::int64_t job) {
        thread_ = std::thread([this, &client, job] { take_signals(client, job); });
    }

    [[nodiscard]] int signal() const { return signal_; }

  private:
    void take_signals(Client& client, std::int64_t job) {
        while (!stop_) {
            const std::timespec poll{.tv_sec = 0, .tv_nsec = kSignalPollNs};
            const int signal = sigtimedwait(&signals_, nullptr, &poll);
            if (signal <= 0) {
                continue;
            }
            if (signal_ != 0) {
                session_.note(fmt::format("job-{} is left alone; see `hold jobs`", job));
                ::_exit(kSignalBase + signal);
            }
            signal_ = signal;
            session_.note(fmt::format("cancelling job-{}; once more leaves it", job));
            if (auto cancelled = client.cancel(job, "interrupted at the terminal"); !cancelled) {
                session_.note(error_text(cancelled.error(), session_.verb, false));
            }
        }
    }

    Session& session_;
    sigset_t signals_{};
    sigset_t before_{};
    std::atomic<bool> stop_{false};
    std::atomic<int> signal_{0};
    std::thread thread_;
};

Result<v1::SubmitRequest> build(Session& session, const Options& options) {
    if (options.command.empty()) {
        return fail(make_error(Errc::invalid_argument, "the command is missing")
                        .advise("write it behind --: hold run -N 1 -- hostname"));
    }
    std::string text = "exec";
    for (const std::string& word : options.command) {
        text += " " + shell_quote(word);
    }
    JobRequest request;
    HOLD_TRY(set_field(request, "run", text, "--"));
    request.name = std::filesystem::path(options.command.front()).filename().string();
    HOLD_TRY(const JobRequest flags, request_from(options.job));
    v1::SubmitRequest submit;
    HOLD_TRY(*submit.mutable_spec(), to_spec(merged(std::move(request), flags)));
    submit.set_idempotency_key(session.around.env.random.hex(kKeyBytes));
    submit.set_user(options.job.user.value_or(""));
    return submit;
}

/// The command's status, as a shell would see it.
int exit_status(const v1::Job& job) {
    if (job.state() == "completed") {
        return 0;
    }
    if (job.state() == "timeout") {
        return exit_code_of(Errc::timed_out);
    }
    for (const v1::Task& task : job.tasks()) {
        if (task.state() == "failed" && task.signal() != 0) {
            return kSignalBase + task.signal();
        }
        if (task.state() == "failed" && task.exit_code() != 0) {
            return task.exit_code() & kExitMax;
        }
    }
    return job.exit_code() > 0 && job.exit_code() <= kExitMax ? job.exit_code() : 1;
}

Result<int> run(Session& session, const Options& options) {
    HOLD_TRY(const v1::SubmitRequest request, build(session, options));
    Interrupts interrupts(session);
    HOLD_TRY(Client * client, session.client());
    HOLD_TRY(const v1::SubmitResponse answer,
             client->submit(request, options.job.retry_for_s * kSecondUs));
    interrupts.watch(*client, answer.job());
    session.note(fmt::format("job-{} is submitted", answer.job()));
    for (const std::string& warning : answer.warnings()) {
        session.note("warning: " + printable(warning));
    }
    if (!answer.reason().empty()) {
        session.note(fmt::format("job-{} waits: {}", answer.job(), printable(answer.reason())));
    }
    FollowOptions follow;
    follow.job = answer.job();
    follow.follow = true;
    follow.prefix = !options.no_prefix && request.spec().tasks() > 1;
    follow.server_away_us = kServerAwayUs;
    HOLD_TRY(print_logs(session, follow));
    HOLD_TRY(v1::Job job, client->wait(answer.job(), kNoLimit, kServerAwayUs));
    if (auto whole = client->get_job(answer.job()); whole && is_ended(whole->state())) {
        job = std::move(*whole);  // with its tasks: which signal ended them
    }
    if (interrupts.signal() != 0 && job.state() == "cancelled") {
        return kSignalBase + interrupts.signal();
    }
    if (job.state() != "completed") {
        session.note(fmt::format("job-{} {}{}", job.id(), job.state(),
                                 job.reason().empty() ? "" : ": " + printable(job.reason())));
    }
    return exit_status(job);
}

}  // namespace

Verb run_verb() {
    return {.name = "run",
            .summary = "runs a command as a job, here: its output, its exit status",
            .group = "Jobs",
            .declare = [](Flags& flags) -> Command {
                auto options = std::make_shared<Options>();
                declare_job_flags(flags, options->job);
                flags.flag("--no-prefix", options->no_prefix,
                           "no [rank] before each line of several tasks");
                flags.rest("-- COMMAND [ARG…]", options->command);
                return [options](Session& session) { return run(session, *options); };
            },
            .examples = {"hold run -N 1 -- hostname",
                         "hold run -n 4 --gpus-per-task 1 -- python3 train.py --lr 3e-4"},
            .notes =
                "Ctrl-C cancels the job; a second Ctrl-C leaves it to itself. The exit status "
                "is the command's, 128 and the signal's number where a signal ended it, and "
                "124 where the time limit did."};
}

}  // namespace holdfast::cli
