// SPDX-License-Identifier: Apache-2.0
// `hold demo`: src/cli/demo holds what it does.
#include "demo/demo.hpp"

#include "app.hpp"
#include "job_ref.hpp"
#include "output.hpp"
#include "verbs.hpp"

namespace holdfast::cli {
namespace {

struct DemoFlags {
    std::int64_t steps = demo::DemoOptions{}.steps;
    std::int64_t kills = demo::DemoOptions{}.kills;
    std::int64_t seed = 0;
    std::optional<std::string> fault, model, backend, directory;
};

Result<demo::DemoOptions> options_from(const DemoFlags& flags) {
    demo::DemoOptions options;
    options.steps = flags.steps;
    options.kills = static_cast<std::int32_t>(flags.kills);
    options.seed = static_cast<std::uint64_t>(flags.seed);
    options.model = flags.model.value_or(options.model);
    options.backend = flags.backend.value_or(options.backend);
    options.directory = flags.directory.value_or("");
    options.libexec = libexec_folder();
    const std::string fault = flags.fault.value_or("sigkill");
    if (fault == "link-down") {
        options.fault = demo::Fault::link_down;
    } else if (fault != "sigkill") {
        return fail(make_error(Errc::invalid_argument, "unknown fault `{}`", fault)
                        .at("--fault")
                        .advise("sigkill or link-down"));
    }
    return options;
}

Result<int> demo_command(Session& session, const DemoFlags& flags) {
    HOLD_TRY(const demo::DemoOptions options, options_from(flags));
    HOLD_TRY(const demo::DemoOutcome outcome, demo::run_demo(options));
    HOLD_TRY(print(session, demo::to_json(outcome.report),
                   demo::to_page(outcome.report, outcome.directory, outcome.job), "demo"));
    return outcome.report.ok() ? 0 : 1;
}

}  // namespace

Verb demo_verb() {
    return {.name = "demo",
            .summary = "shows a training job that survives a killed node, and checks it",
            .group = "About",
            .prints = Prints::object,
            .needs_server = false,
            .declare = [](Flags& flags) -> Command {
                auto values = std::make_shared<DemoFlags>();
                flags.integer("--steps", values->steps, 20, 10'000, "N", "optimizer steps");
                flags.integer("--kills", values->kills, 1, 4, "N", "nodes killed, one by one");
                flags.integer("--seed", values->seed, 0, INT64_MAX, "N",
                              "of the kill; 0: another one each time");
                flags
                    .text("--fault", values->fault, "KIND",
                          "sigkill, or link-down: a silent host (root)")
                    .words = {"sigkill", "link-down"};
                flags.text("--model", values->model, "NAME", "gpt-small or gpt-tiny").words = {
                    "gpt-small", "gpt-tiny"};
                flags.text("--backend", values->backend, "NAME", "torch or reference").words = {
                    "torch", "reference"};
                flags.text("--directory", values->directory, "DIR",
                           "where it runs; default: a new one under TMPDIR");
                return [values](Session& session) { return demo_command(session, *values); };
            },
            .examples = {"hold demo", "hold demo --json --kills 2 --steps 120"},
            .notes =
                "Starts a server and four agents on this machine, trains a 2-pipeline, 3-stage GPT "
                "twice, kills a node of the second run with SIGKILL at a random step, brings it "
                "back, and compares the losses, which must be the same bytes. Exit status 1 if a "
                "claim fails. The directory stays, with the server's data, for a look around."};
}

}  // namespace holdfast::cli
