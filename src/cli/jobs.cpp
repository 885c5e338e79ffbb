// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "job_ref.hpp"
#include "json.hpp"
#include "text.hpp"
#include "verbs.hpp"

namespace holdfast::cli {
namespace {

constexpr std::int64_t kLimitDefault = 1000;
constexpr std::int64_t kLimitMax = 10'000;
constexpr std::string_view kClearScreen = "\x1b[H\x1b[2J";

struct Options {
    std::optional<std::string> user;
    std::optional<std::string> states;
    std::optional<std::string> pool;
    std::vector<std::string> ids;
    bool me = false;
    bool all = false;
    bool watch = false;
    std::int64_t interval_s = 2;
    std::int64_t limit = kLimitDefault;
};

const std::vector<std::string> kStates = {"pending", "running",   "paused",  "completed",
                                          "failed",  "cancelled", "timeout", "node_fail"};

/// "PD,running" → words of the API.
Result<std::vector<std::string>> states_from(const std::string& text) {
    std::vector<std::string> states;
    for (const std::string_view part : split(text, ',')) {
        std::string word(part);
        std::transform(word.begin(), word.end(), word.begin(), [](char c) {
            return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
        });
        const auto found = std::find_if(kStates.begin(), kStates.end(), [&](const auto& state) {
            std::string letters = state_letters(state);
            return state == word ||
                   std::equal(letters.begin(), letters.end(), word.begin(), word.end(),
                              [](char a, char b) { return static_cast<char>(a - 'A' + 'a') == b; });
        });
        if (found == kStates.end()) {
            const std::string near = did_you_mean(word, kStates);
            return fail(
                make_error(Errc::invalid_argument, "unknown job state `{}`", printable(part))
                    .at("--states")
                    .advise(near.empty() ? "choose PD, R, S, CD, F, CA, TO, NF or their words"
                                         : near));
        }
        states.push_back(*found);
    }
    return states;
}

Result<v1::ListJobsRequest> request_of(Session& session, const Options& options) {
    v1::ListJobsRequest request;
    if (options.states) {
        HOLD_TRY(const std::vector<std::string> states, states_from(*options.states));
        for (const std::string& state : states) {
            request.add_states(state);
            request.set_ended(request.ended() || is_ended(state));
        }
    }
    request.set_ended(request.ended() || options.all || !options.ids.empty());
    request.set_user(options.user.value_or(""));
    if (options.me) {
        HOLD_TRY(Client * client, session.client());
        HOLD_TRY(const v1::ServerInfo info, client->info());
        request.set_user(info.user());
    }
    request.set_limit(static_cast<std::int32_t>(options.limit));
    return request;
}

/// The jobs named: elements of arrays among them.
Result<v1::ListJobsResponse> named_jobs(Session& session, const std::vector<std::string>& ids) {
    HOLD_TRY(Client * client, session.client());
    v1::ListJobsResponse jobs;
    for (const std::string& text : ids) {
        HOLD_TRY(const JobRef ref, parse_job_ref(text));
        v1::ListJobsResponse elements;
        if (!ref.index) {
            HOLD_TRY(elements, elements_of(session, ref.id));
            jobs.MergeFrom(elements);
        }
        if (elements.jobs().empty()) {
            HOLD_TRY(const std::int64_t id, resolve(session, ref));
            HOLD_TRY(*jobs.add_jobs(), client->get_job(id));
        }
    }
    return jobs;
}

Result<Listing> fetch(Session& session, const Options& options,
                      const v1::ListJobsRequest& request) {
    v1::ListJobsResponse jobs;
    if (options.ids.empty()) {
        HOLD_TRY(Client * client, session.client());
        HOLD_TRY(jobs, client->list_jobs(request));
    } else {
        HOLD_TRY(jobs, named_jobs(session, options.ids));
    }
    v1::ListJobsResponse chosen;
    for (v1::Job& job : *jobs.mutable_jobs()) {
        if (!options.pool || job.pool() == *options.pool) {
            *chosen.add_jobs() = std::move(job);
        }
    }
    if (options.ids.empty() && jobs.jobs_size() == options.limit) {
        session.note(fmt::format("only the first {} jobs are shown; see --limit", options.limit));
    }
    return job_listing(chosen.jobs(), session.now_us());
}

Result<int> list(Session& session, const Options& options) {
    HOLD_TRY(const v1::ListJobsRequest request, request_of(session, options));
    while (true) {
        HOLD_TRY(Listing listing, fetch(session, options, request));
        HOLD_TRY(std::string text, render(std::move(listing), session.output));
        if (options.watch && session.around.out.is_terminal()) {
            text.insert(0, kClearScreen);
        }
        HOLD_TRY(session.around.out.write(text));
        if (!options.watch) {
            return 0;
        }
        session.around.env.clock.sleep_us(options.interval_s * kSecondUs);
    }
}

}  // namespace

Verb jobs_verb() {
    return {.name = "jobs",
            .summary = "lists jobs that wait or run",
            .group = "Jobs",
            .prints = Prints::list,
            .declare = [](Flags& flags) -> Command {
                auto options = std::make_shared<Options>();
                PositionalInfo& ids = flags.positionals("ID", options->ids, "only these jobs");
                ids.required = false;
                ids.completes = Completes::job;
                flags.text("-u,--user", options->user, "NAME", "only this user's");
                flags.flag("--me", options->me, "only your own");
                flags.text("-t,--states", options->states, "LIST",
                           "PD, R, S, CD, F, CA, TO, NF or their words");
                flags.text("-p,--partition", options->pool, "POOL", "only this pool's");
                flags.flag("-a,--all", options->all, "also jobs that have ended");
                flags.integer("--limit", options->limit, 1, kLimitMax, "N",
                              "at most so many (default 1000)");
                flags.flag("-w,--watch", options->watch, "again and again, until Ctrl-C");
                flags.integer("-i,--interval", options->interval_s, 1, 3600, "SECONDS",
                              "of --watch (default 2)");
                return [options](Session& session) { return list(session, *options); };
            },
            .examples = {"hold jobs --me -t PD,R", "hold jobs --all --sort -end_us -o wide"},
            .notes =
                "ST is PD pending, R running, S paused, CD completed, F failed, CA cancelled, "
                "TO timeout, NF node_fail."};
}

}  // namespace holdfast::cli
