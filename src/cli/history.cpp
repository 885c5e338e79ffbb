// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "job_ref.hpp"
#include "json.hpp"
#include "text.hpp"
#include "verbs.hpp"

namespace holdfast::cli {
namespace {

constexpr std::int64_t kLimitMax = 10'000;
constexpr std::size_t kChangeWidth = 80;

struct Options {
    std::vector<std::string> of;
    std::optional<std::string> table;
    std::optional<std::string> key;
    std::int64_t after = 0;
    std::int64_t limit = 1000;
};

std::string short_value(const Json& value) {
    std::string text = value.is_string() ? value.get<std::string>() : json_text(value, -1);
    constexpr std::size_t kMax = 40;
    if (display_width(text) > kMax) {
        std::size_t end = kMax;
        while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80) {
            --end;
        }
        text = text.substr(0, end) + "…";
    }
    return text.empty() ? "''" : text;
}

/// "state: pending → running, node: '' → n1"
std::string change_text(const Json& change, bool whole) {
    const Json& before = change["before"];
    const Json& after = change["after"];
    const Json& shown = after.is_object() ? after : before;
    if (!shown.is_object()) {
        return "";
    }
    std::vector<std::string> parts;
    for (const auto& [field, value] : shown.items()) {
        if (!before.is_object() || !after.is_object()) {
            parts.push_back(fmt::format("{}: {}", field, short_value(value)));
        } else if (!before.contains(field) || before[field] != value) {
            parts.push_back(fmt::format("{}: {} → {}", field,
                                        before.contains(field) ? short_value(before[field]) : "",
                                        short_value(value)));
        }
    }
    std::string text;
    for (const std::string& part : parts) {
        if (!whole && !text.empty() && display_width(text) + display_width(part) > kChangeWidth) {
            return text + ", …";
        }
        text += text.empty() ? part : ", " + part;
    }
    return text;
}

/// "job-42", "42", "job 42", "node n1", "node/n1".
Result<> set_subject(Session& session, v1::HistoryRequest& request,
                     std::vector<std::string> words) {
    if (words.empty()) {
        return {};
    }
    if (words.size() == 1 && words[0].starts_with("node/")) {
        words = {"node", words[0].substr(5)};
    }
    if (words.size() == 2 && words[0] == "node") {
        request.set_node(words[1]);
        return {};
    }
    if (words.size() == 2 && words[0] == "job") {
        words.erase(words.begin());
    }
    if (words.size() != 1) {
        return fail(make_error(Errc::invalid_argument, "`{}` names neither a job nor a node",
                               printable(fmt::format("{}", fmt::join(words, " "))))
                        .advise("write job-42 or node n1"));
    }
    HOLD_TRY(const JobRef ref, parse_job_ref(words[0]));
    HOLD_TRY(const std::int64_t job, resolve(session, ref));
    request.set_job(job);
    return {};
}

Result<int> history(Session& session, const Options& options) {
    v1::HistoryRequest request;
    HOLD_TRY(set_subject(session, request, options.of));
    request.set_table(options.table.value_or(""));
    request.set_key(options.key.value_or(""));
    request.set_after_seq(options.after);
    request.set_limit(static_cast<std::int32_t>(options.limit));
    HOLD_TRY(Client * client, session.client());
    HOLD_TRY(const v1::HistoryResponse answer, client->history(request));
    Listing listing;
    listing.noun = "changes";
    listing.shape = to_json(v1::Change());
    listing.columns = {{.header = "SEQ", .right = true},
                       {.header = "TXN", .wide = true, .right = true},
                       {.header = "TIME"},
                       {.header = "WHO"},
                       {.header = "CAUSE"},
                       {.header = "TABLE"},
                       {.header = "KEY"},
                       {.header = "OP"},
                       {.header = "CHANGE"}};
    for (const v1::Change& change : answer.changes()) {
        Row row;
        row.object = to_json(change);
        row.name = fmt::format("change-{}", change.seq());
        row.cells = {std::to_string(change.seq()),
                     std::to_string(change.txn()),
                     format_local_time(change.at_us()),
                     change.who(),
                     change.cause(),
                     change.table(),
                     change.key(),
                     change.op(),
                     change_text(row.object, session.output.format == Format::wide)};
        listing.rows.push_back(std::move(row));
    }
    if (answer.changes_size() == options.limit) {
        session.note(fmt::format("there may be more; go on with --after {}",
                                 answer.changes(answer.changes_size() - 1).seq()));
    }
    HOLD_TRY(print(session, std::move(listing)));
    return 0;
}

}  // namespace

Verb history_verb() {
    return {.name = "history",
            .summary = "shows what changed: when, by whom, and why",
            .group = "Questions",
            .prints = Prints::list,
            .declare = [](Flags& flags) -> Command {
                auto options = std::make_shared<Options>();
                PositionalInfo& of = flags.positionals("OF", options->of, "job-42, or node n1");
                of.required = false;
                of.completes = Completes::job;
                flags.text("--table", options->table, "TABLE", "only rows of this table");
                flags.text("--key", options->key, "KEY", "only the row with this primary key");
                flags.integer("--after", options->after, 0, std::int64_t{1} << 62, "SEQ",
                              "only later changes");
                flags.integer("--limit", options->limit, 1, kLimitMax, "N",
                              "at most so many (default 1000)");
                return [options](Session& session) { return history(session, *options); };
            },
            .examples = {"hold history job-42", "hold history --table node --key 3 -o wide"}};
}

}  // namespace holdfast::cli
