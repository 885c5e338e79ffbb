// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "job_ref.hpp"
#include "json.hpp"
#include "log_printer.hpp"
#include "text.hpp"
#include "verbs.hpp"
#include "waiting.hpp"

namespace holdfast::cli {
namespace {

constexpr std::size_t kOpenLineMax = 64 << 10;
constexpr std::size_t kJsonBytesMax = 64 << 20;
constexpr std::int64_t kReopenUs = 500'000;

}  // namespace

Stream& LogPrinter::stream_of(const Source& source) {
    return source.second == "stderr" ? session_.around.err : session_.around.out;
}

Result<> LogPrinter::print(const v1::LogChunk& chunk) {
    Seen& seen = seen_[{chunk.task(), chunk.stream()}];
    std::string_view text = chunk.text();
    // A task that began again counts its output from 0, later in time.
    if (chunk.at_us() < seen.at_us) {
        return {};
    }
    if (chunk.at_us() == seen.at_us && chunk.offset() < seen.end) {
        const auto known = static_cast<std::size_t>(seen.end - chunk.offset());
        if (known >= text.size()) {
            return {};
        }
        text.remove_prefix(known);
    }
    seen = {chunk.at_us(), chunk.offset() + static_cast<std::int64_t>(chunk.text().size())};
    const Source source{chunk.rank(), chunk.stream()};
    return prefix_ ? lines(source, text) : stream_of(source).write(text);
}

Result<> LogPrinter::lines(const Source& source, std::string_view text) {
    std::string& open = open_lines_[source];
    open += text;
    std::string whole;
    std::size_t begin = 0;
    for (auto end = open.find('\n'); end != std::string::npos; end = open.find('\n', begin)) {
        whole += fmt::format("[{}] {}\n", source.first, open.substr(begin, end - begin));
        begin = end + 1;
    }
    open.erase(0, begin);
    if (open.size() > kOpenLineMax) {
        whole += fmt::format("[{}] {}\n", source.first, open);
        open.clear();
    }
    return whole.empty() ? Result<>() : stream_of(source).write(whole);
}

Result<> LogPrinter::finish() {
    for (auto& [source, open] : open_lines_) {
        if (!open.empty()) {
            HOLD_TRY(stream_of(source).write(fmt::format("[{}] {}\n", source.first, open)));
            open.clear();
        }
    }
    return {};
}

Result<> print_logs(Session& session, const FollowOptions& options) {
    HOLD_TRY(Client * client, session.client());
    Clock& clock = session.around.env.clock;
    LogPrinter printer(session, options.prefix);
    v1::LogsRequest request;
    request.set_job(options.job);
    request.set_rank(options.rank);
    request.set_follow(options.follow);
    request.set_tail_bytes(options.tail_bytes);
    std::int64_t last_alive_us = clock.steady_us();
    while (true) {
        Result<> printed;
        auto ended = client->logs(request, [&](const v1::LogChunk& chunk) {
            last_alive_us = clock.steady_us();
            printed = printer.print(chunk);
            return printed.has_value();
        });
        HOLD_TRY(printed);
        const bool away = !ended && ended.error().code == Errc::unavailable && options.follow;
        if (!away || clock.steady_us() - last_alive_us >= options.server_away_us) {
            HOLD_TRY(printer.finish());
            return ended;
        }
        clock.sleep_us(kReopenUs);
    }
}

namespace {

struct Options {
    std::optional<std::string> id;
    bool follow = false;
    bool no_prefix = false;
    std::int64_t tail_bytes = 0;
};

/// The chunks as one object.
Result<int> logs_object(Session& session, const FollowOptions& follow) {
    HOLD_TRY(Client * client, session.client());
    v1::LogsRequest request;
    request.set_job(follow.job);
    request.set_rank(follow.rank);
    request.set_tail_bytes(follow.tail_bytes);
    Listing listing;
    listing.noun = "chunks";
    const auto object_of = [](const v1::LogChunk& chunk) -> Json {
        return {{"task", chunk.task()},     {"rank", chunk.rank()},   {"stream", chunk.stream()},
                {"offset", chunk.offset()}, {"at_us", chunk.at_us()}, {"text", chunk.text()}};
    };
    listing.shape = object_of(v1::LogChunk());
    listing.extra["job"] = follow.job;
    std::size_t bytes = 0;
    HOLD_TRY(client->logs(request, [&](const v1::LogChunk& chunk) {
        bytes += chunk.text().size();
        Row row;
        row.object = object_of(chunk);
        row.name = fmt::format("task-{}", chunk.task());
        listing.rows.push_back(std::move(row));
        return bytes <= kJsonBytesMax;
    }));
    if (bytes > kJsonBytesMax) {
        return fail(make_error(Errc::too_large, "the output has more than {} bytes", kJsonBytesMax)
                        .advise("use --tail, one rank, or plain `hold logs`"));
    }
    HOLD_TRY(print(session, std::move(listing)));
    return 0;
}

Result<int> logs(Session& session, const Options& options) {
    HOLD_TRY(const JobRef ref, parse_job_ref(*options.id, true));
    HOLD_TRY(Client * client, session.client());
    FollowOptions follow;
    HOLD_TRY(follow.job, resolve(session, ref));
    follow.rank = ref.rank.value_or(-1);
    follow.follow = options.follow;
    follow.tail_bytes = options.tail_bytes;
    follow.server_away_us = kServerAwayUs;
    if (!session.output.is_for_people()) {
        if (options.follow) {
            return fail(
                make_error(Errc::invalid_argument, "--follow has no end to print as an object")
                    .at("--follow")
                    .advise("leave out --follow or the output format"));
        }
        return logs_object(session, follow);
    }
    HOLD_TRY(const v1::Job job, client->get_job(follow.job));
    follow.prefix = !ref.rank && !options.no_prefix && job.spec().tasks() > 1;
    HOLD_TRY(print_logs(session, follow));
    return 0;
}

}  // namespace

Verb logs_verb() {
    return {.name = "logs",
            .summary = "shows what a job's tasks have printed",
            .group = "Jobs",
            .prints = Prints::object,
            .declare = [](Flags& flags) -> Command {
                auto options = std::make_shared<Options>();
                flags.positional("ID", options->id, "job, element or task: 42, 42_3, 42.1, 42_3.0")
                    .completes = Completes::job;
                flags.flag("-f,--follow", options->follow, "go on until the job has ended");
                flags.integer("--tail", options->tail_bytes, 1, std::int64_t{1} << 40, "BYTES",
                              "only the end of each task's output");
                flags.flag("--no-prefix", options->no_prefix,
                           "no [rank] before each line of a job with several tasks");
                return [options](Session& session) { return logs(session, *options); };
            },
            .examples = {"hold logs -f 42", "hold logs --tail 4096 42.1"},
            .notes =
                "Standard output goes to standard output, standard error to standard error. A "
                "followed job is followed on when its server comes back within five minutes."};
}

}  // namespace holdfast::cli
