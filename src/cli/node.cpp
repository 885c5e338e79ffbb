// SPDX-License-Identifier: Apache-2.0
// `hold node add|remove|drain|undrain|cordon`. NAME may be a host list: n[01-08].
#include "job_ref.hpp"
#include "json.hpp"
#include "text.hpp"
#include "verbs.hpp"

namespace holdfast::cli {
namespace {

constexpr std::int64_t kDeadlineMaxS = 30 * 86'400;

struct Options {
    std::vector<std::string> names;
    std::optional<std::string> pool;
    std::optional<std::string> reason;
    std::optional<std::string> deadline;
};

Result<std::vector<v1::NodeRequest>> requests_of(const Options& options) {
    std::int64_t deadline_s = 0;
    if (options.deadline) {
        auto seconds = parse_time_limit(*options.deadline);
        if (!seconds || *seconds > kDeadlineMaxS) {
            return fail(make_error(Errc::invalid_argument, "`{}` is not a time up to 30 days",
                                   printable(*options.deadline))
                            .at("--deadline")
                            .advise("write 90s, 10m, 2h or HH:MM:SS"));
        }
        deadline_s = *seconds;
    }
    std::vector<v1::NodeRequest> requests;
    for (const std::string& text : options.names) {
        HOLD_TRY(const std::vector<std::string> names, expand_hosts(text));
        for (const std::string& name : names) {
            v1::NodeRequest request;
            request.set_name(name);
            request.set_pool(options.pool.value_or(""));
            request.set_reason(options.reason.value_or(""));
            request.set_deadline_s(deadline_s);
            requests.push_back(std::move(request));
        }
    }
    return requests;
}

using Act = Result<v1::Node> (Client::*)(const v1::NodeRequest&);

/// Each node in turn; the first error ends it.
Result<int> change(Session& session, const Options& options, Act act) {
    HOLD_TRY(const std::vector<v1::NodeRequest> requests, requests_of(options));
    HOLD_TRY(Client * client, session.client());
    v1::ListNodesResponse nodes;
    for (const v1::NodeRequest& request : requests) {
        HOLD_TRY(const v1::Node node, (client->*act)(request));
        if (session.output.is_for_people()) {
            HOLD_TRY(
                session.around.out.write(fmt::format("{} is {}\n", node.name(), node.state())));
        }
        *nodes.add_nodes() = node;
    }
    if (!session.output.is_for_people()) {
        HOLD_TRY(print(session, node_listing(nodes.nodes(), session.now_us())));
    }
    return 0;
}

void declare_names(Flags& flags, Options& options) {
    flags.positionals("NAME", options.names, "node, or a host list: n[01-08]").completes =
        Completes::node;
}

}  // namespace

Verb node_add_verb() {
    return {.name = "node add",
            .summary = "announces a node and makes its one-time enrolment token",
            .group = "Nodes",
            .prints = Prints::list,
            .declare = [](Flags& flags) -> Command {
                auto options = std::make_shared<Options>();
                flags.positionals("NAME", options->names, "node, or a host list: n[01-08]");
                flags.text("-p,--partition", options->pool, "POOL", "its pool");
                return [options](Session& session) -> Result<int> {
                    HOLD_TRY(const std::vector<v1::NodeRequest> requests, requests_of(*options));
                    HOLD_TRY(Client * client, session.client());
                    Listing listing;
                    listing.noun = "nodes";
                    listing.shape = {{"name", ""}, {"enrolment_token", ""}};
                    listing.columns = {{.header = "NODE"}, {.header = "ENROLMENT_TOKEN"}};
                    for (const v1::NodeRequest& request : requests) {
                        HOLD_TRY(const v1::AddNodeResponse answer, client->add_node(request));
                        Row row;
                        row.object = {{"name", answer.name()},
                                      {"enrolment_token", answer.enrolment_token()}};
                        row.cells = {answer.name(), answer.enrolment_token()};
                        row.name = answer.name();
                        listing.rows.push_back(std::move(row));
                    }
                    HOLD_TRY(print(session, std::move(listing)));
                    session.note(
                        "a token is shown once and works once: put it into a file on the node and "
                        "start `hold agent --name NODE --enrolment-token-file FILE` there");
                    return 0;
                };
            },
            .examples = {"hold node add n1", "hold node add -p h100 'n[01-08]' -o csv"}};
}

Verb node_remove_verb() {
    return {.name = "node remove",
            .summary = "forgets nodes that run nothing",
            .group = "Nodes",
            .prints = Prints::list,
            .declare = [](Flags& flags) -> Command {
                auto options = std::make_shared<Options>();
                declare_names(flags, *options);
                return [options](Session& session) -> Result<int> {
                    HOLD_TRY(const std::vector<v1::NodeRequest> requests, requests_of(*options));
                    HOLD_TRY(Client * client, session.client());
                    Listing listing;
                    listing.noun = "removed";
                    listing.shape = {{"name", ""}};
                    listing.columns = {{.header = "REMOVED"}};
                    for (const v1::NodeRequest& request : requests) {
                        HOLD_TRY(client->remove_node(request));
                        Row row;
                        row.object = {{"name", request.name()}};
                        row.cells = {request.name()};
                        row.name = request.name();
                        listing.rows.push_back(std::move(row));
                    }
                    HOLD_TRY(print(session, std::move(listing)));
                    return 0;
                };
            },
            .examples = {"hold node remove n3", "hold node remove 'n[01-08]'"}};
}

Verb node_drain_verb() {
    return {.name = "node drain",
            .summary = "lets a node's tasks end and starts no more",
            .group = "Nodes",
            .prints = Prints::list,
            .declare = [](Flags& flags) -> Command {
                auto options = std::make_shared<Options>();
                declare_names(flags, *options);
                flags.text("--reason", options->reason, "TEXT", "shown by `hold nodes`");
                flags.text("--deadline", options->deadline, "TIME",
                           "after it tasks are cancelled: 10m; without it they may finish");
                return [options](Session& session) {
                    return change(session, *options, &Client::drain);
                };
            },
            .examples = {"hold node drain n3 --reason 'new fan' --deadline 10m",
                         "hold node drain 'n[01-08]'"}};
}

Verb node_undrain_verb() {
    return {.name = "node undrain",
            .summary = "takes a drained or cordoned node back into service",
            .group = "Nodes",
            .prints = Prints::list,
            .declare = [](Flags& flags) -> Command {
                auto options = std::make_shared<Options>();
                declare_names(flags, *options);
                return [options](Session& session) {
                    return change(session, *options, &Client::undrain);
                };
            },
            .examples = {"hold node undrain n3", "hold node undrain 'n[01-08]'"}};
}

Verb node_cordon_verb() {
    return {
        .name = "node cordon",
        .summary = "starts no more tasks on a node; those that run stay",
        .group = "Nodes",
        .prints = Prints::list,
        .declare = [](Flags& flags) -> Command {
            auto options = std::make_shared<Options>();
            declare_names(flags, *options);
            flags.text("--reason", options->reason, "TEXT", "shown by `hold nodes`");
            return
                [options](Session& session) { return change(session, *options, &Client::cordon); };
        },
        .examples = {"hold node cordon n3 --reason 'looks odd'", "hold node cordon 'n[01-08]'"}};
}

}  // namespace holdfast::cli
