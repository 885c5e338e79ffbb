// SPDX-License-Identifier: Apache-2.0
// Goal: what each verb prints for programs is stable to the byte, what it prints for people is what
// Slurm's users know, and every failure has its exit status. Method: `hold` in this process against
// a server of canned rows; the JSON lies in golden/ (HOLDFAST_UPDATE_GOLDEN=1 writes it anew).
#include "verbs.hpp"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fake_server.hpp"

namespace holdfast::cli::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string read_text(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

void expect_golden(const std::string& name, const std::string& text) {
    const auto path = std::filesystem::path(HOLDFAST_GOLDEN_DIR) / name;
    if (std::getenv("HOLDFAST_UPDATE_GOLDEN") != nullptr) {
        std::ofstream(path, std::ios::binary) << text;
        return;
    }
    EXPECT_EQ(text, read_text(path)) << "golden file " << name;
}

class Verbs : public ::testing::Test {
  protected:
    static void SetUpTestSuite() {
        setenv("TZ", "UTC", 1);
        unsetenv("HOLDFAST_LIBEXEC");
    }

    FakeServer server_;
};

// ------------------------------------------------------------------------------------------ golden

TEST_F(Verbs, JsonIsStable) {
    const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
        {"jobs", {"jobs", "--all", "--json"}},
        {"jobs_none", {"jobs", "-u", "nobody", "--json"}},
        {"why", {"why", "43", "--json"}},
        {"cancel", {"cancel", "44_3", "--json"}},
        {"cancel_some", {"cancel", "99", "43", "--json"}},
        {"pause", {"pause", "43", "--json"}},
        {"resume", {"resume", "43", "--json"}},
        {"wait", {"wait", "45", "--json"}},
        {"logs", {"logs", "42", "--json"}},
        {"nodes", {"nodes", "--json"}},
        {"node_add", {"node", "add", "n7", "--json"}},
        {"node_remove", {"node", "remove", "n7", "--json"}},
        {"node_drain", {"node", "drain", "n01", "--json"}},
        {"pool_create", {"pool", "create", "h100", "--json"}},
        {"pool_list", {"pool", "list", "--json"}},
        {"pool_delete", {"pool", "delete", "h100", "--json"}},
        {"token_create", {"token", "create", "--expires", "1d", "--json"}},
        {"token_list", {"token", "list", "--json"}},
        {"token_revoke", {"token", "revoke", "7", "--json"}},
        {"history", {"history", "job-42", "--json"}},
        {"sql", {"sql", "SELECT 1", "--json"}},
        {"submit", {"submit", "--wrap", "true", "--json"}},
        {"submit_dry_run", {"submit", "--wrap", "true", "--dry-run", "--json"}},
        {"error", {"why", "7", "--json"}},
        {"usage_error", {"jobs", "--bogus", "--json"}},
    };
    server_.jobs.answer.add_warnings("careful");
    server_.jobs.answer.add_node_names("n01");
    for (const auto& [name, arguments] : cases) {
        expect_golden(name + ".json", hold(arguments).out);
    }
}

TEST_F(Verbs, YamlAndCsvAreStable) {
    expect_golden("jobs.yaml", hold({"jobs", "-o", "yaml"}).out);
    expect_golden("jobs.csv", hold({"jobs", "-o", "csv"}).out);
    expect_golden("sql.csv", hold({"sql", "SELECT 1", "-o", "csv"}).out);
    expect_golden("nodes.csv", hold({"nodes", "-o", "csv", "--no-headers"}).out);
}

// ----------------------------------------------------------------------------------------- tables

TEST_F(Verbs, JobsLooksLikeSqueue) {
    EXPECT_EQ(
        hold({"jobs"}).out,
        "JOBID  PARTITION  NAME                 USER  ST  TIME  NODES  NODELIST(REASON)\n"
        "   42  default    train                ada   R   1:05      3  n[01-03]\n"
        "   43  h100       evil\\x1b[31m,\"name\"  bob   PD  0:00      1  (wants 8 gpus on one "
        "node; the largest node has 4)\n");
}

TEST_F(Verbs, JobsFilters) {
    EXPECT_EQ(hold({"jobs", "-o", "name", "--all"}).out, "job-42\njob-43\njob-45\njob-44_3\n");
    EXPECT_EQ(hold({"jobs", "-o", "name", "-t", "PD"}).out, "job-43\n");
    EXPECT_EQ(hold({"jobs", "-o", "name", "-t", "failed,R"}).out, "job-42\njob-44_3\n");
    EXPECT_EQ(hold({"jobs", "-o", "name", "--me"}).out, "job-42\n");
    EXPECT_EQ(hold({"jobs", "-o", "name", "-p", "h100"}).out, "job-43\n");
    EXPECT_EQ(hold({"jobs", "-o", "name", "44"}).out, "job-44_3\n");
    EXPECT_EQ(hold({"jobs", "-o", "name", "--all", "--sort=-id"}).out,
              "job-44_3\njob-45\njob-43\njob-42\n");
    EXPECT_EQ(hold({"jobs", "-o", "name", "--all", "--sort", "NAME"}).out,
              "job-43\njob-45\njob-44_3\njob-42\n");
    EXPECT_EQ(hold({"jobs", "--no-headers", "-t", "R"}).out,
              "42  default  train  ada  R  1:05  3  n[01-03]\n");
}

TEST_F(Verbs, SortNamesItsColumns) {
    const Ran ran = hold({"jobs", "--sort", "stat"});
    EXPECT_EQ(ran.status, 2);
    EXPECT_EQ(ran.err,
              "hold jobs: error: no column `stat` to sort by\n  at --sort\n  hint: did you "
              "mean `state`?\n");
}

TEST_F(Verbs, NodesAndOthersForPeople) {
    EXPECT_EQ(hold({"nodes"}).out,
              "NODE  PARTITION  STATE    CPUS             MEMORY  GPUS  GPUTYPE  TASKS  REASON\n"
              "n01   default    up        6/8  32.0 GiB/64.0 GiB   1/4  h100         2\n"
              "n02   default    drained   6/8  32.0 GiB/64.0 GiB   1/4  h100         2  new fan\n");
    EXPECT_EQ(hold({"nodes", "-t", "drained", "-o", "name"}).out, "n02\n");
    EXPECT_EQ(hold({"why", "job-43"}).out,
              "job-43 is pending: wants 8 gpus on one node; the largest node has 4\n\n"
              "details:\n  - gpus: wants 8, n01 has 4, n02 has 2\n\n"
              "warnings:\n  - workers of one stage share a node\n\n"
              "what would help:\n  - ask for 4 gpus\n");
    EXPECT_EQ(hold({"history", "42"}).out,
              "SEQ  TIME                 WHO     CAUSE       TABLE  KEY  OP      CHANGE\n"
              "  1  2023-11-14T22:13:20  ada     submit      job    42   insert  id: 42, state: "
              "pending\n"
              "  2  2023-11-14T22:13:20  server  grant_gang  job    42   update  state: pending → "
              "running, node: '' → n01\n");
    EXPECT_EQ(hold({"sql", "SELECT 1"}).out,
              "              id  x                x\n"
              "9007199254740993  a,\"b\"\\x0a      0.5\n"
              "              -1  NULL       x'00ff'\n");
    EXPECT_EQ(hold({"token", "create"}).out, "hf_0123\n");
    EXPECT_EQ(hold({"cancel", "42", "44_3"}).out, "job-42 cancelled\njob-44_3 cancelled\n");
}

TEST_F(Verbs, RequestsCarryTheFlags) {
    EXPECT_EQ(hold({"node", "drain", "n[1-2]", "--reason", "fan", "--deadline", "10m"}).status, 0);
    ASSERT_EQ(server_.nodes.requests.size(), 2U);
    EXPECT_EQ(server_.nodes.requests[1].name(), "n2");
    EXPECT_EQ(server_.nodes.requests[1].reason(), "fan");
    EXPECT_EQ(server_.nodes.requests[1].deadline_s(), 600);
    hold({"history", "node", "n1", "--after", "5", "--limit", "2"});
    EXPECT_EQ(server_.system.history.node(), "n1");
    EXPECT_EQ(server_.system.history.after_seq(), 5);
    EXPECT_EQ(server_.system.history.limit(), 2);
    hold({"history", "44_3"});
    EXPECT_EQ(server_.system.history.job(), 48);
    hold({"cancel", "42", "--reason", "wrong data"});
    EXPECT_EQ(server_.jobs.cancel_reason, "wrong data");
    hold({"sql", "-", "--max-rows", "5", "--timeout", "3"}, "SELECT 2");
    EXPECT_EQ(server_.system.sql.sql(), "SELECT 2");
    EXPECT_EQ(server_.system.sql.rows_max(), 5);
    EXPECT_EQ(server_.system.sql.timeout_ms(), 3000);
}

// ----------------------------------------------------------------------------------------- submit

TEST_F(Verbs, SubmitSendsTheJob) {
    const Ran ran = hold({"submit", "-", "-N", "2", "--user", "ada"},
                         "run: x\ngpus_per_node: h100:8\ntime_limit: 1-00\n");
    EXPECT_EQ(ran.status, 0) << ran.err;
    EXPECT_EQ(ran.out, "submitted job-42\n");
    const v1::SubmitRequest& sent = server_.jobs.submitted;
    EXPECT_EQ(sent.user(), "ada");
    EXPECT_EQ(sent.spec().run(), "x");
    EXPECT_EQ(sent.spec().tasks(), 2);
    EXPECT_EQ(sent.spec().tasks_per_node(), 1);
    EXPECT_EQ(sent.spec().per_task().gpus(), 8);
    EXPECT_EQ(sent.spec().per_task().gpu_type(), "h100");
    EXPECT_EQ(sent.spec().time_limit_s(), 86'400);
    EXPECT_EQ(sent.idempotency_key().size(), 32U);
    EXPECT_FALSE(sent.dry_run());
}

TEST_F(Verbs, SubmitTriesAgainWithTheSameKey) {
    server_.jobs.refuse_submits = 3;
    const Ran ran = hold({"submit", "--wrap", "true"});
    EXPECT_EQ(ran.status, 0) << ran.err;
    ASSERT_EQ(server_.jobs.keys.size(), 4U);
    EXPECT_EQ(server_.jobs.keys[0], server_.jobs.keys[3]);
    EXPECT_THAT(ran.err, HasSubstr("trying again"));
    server_.jobs.refuse_submits = 1'000'000;
    EXPECT_EQ(hold({"submit", "--wrap", "true"}).status, 6);
    EXPECT_EQ(hold({"submit", "--wrap", "true", "--retry-for", "0"}).status, 6);
}

TEST_F(Verbs, SubmitReadsFilesByTheirKind) {
    const auto script = (server_.folder / "job.sh").string();
    std::ofstream(script) << "#!/bin/sh\n#SBATCH -N 3\necho $1\n";
    EXPECT_EQ(hold({"submit", script, "a b"}).status, 0);
    EXPECT_EQ(server_.jobs.submitted.spec().name(), "job.sh");
    EXPECT_EQ(server_.jobs.submitted.spec().tasks(), 3);
    EXPECT_THAT(server_.jobs.submitted.spec().run(), StartsWith("exec /bin/sh /dev/fd/3 'a b' "));
    const auto file = (server_.folder / "gpt.yaml").string();
    std::ofstream(file) << "run: y\n";
    EXPECT_EQ(hold({"submit", file, "--dry-run"}).status, 0);
    EXPECT_EQ(server_.jobs.submitted.spec().name(), "gpt");
    EXPECT_TRUE(server_.jobs.submitted.dry_run());
    EXPECT_EQ(hold({"submit", file, "argument"}).status, 2);
    EXPECT_EQ(hold({"submit", "no-such-file"}).status, 3);
    EXPECT_EQ(hold({"submit"}).status, 2);
}

TEST_F(Verbs, SubmitShowsWhyAJobCanNeverRun) {
    server_.jobs.answer.set_reason("wants 9 gpus; the largest node has 4");
    const Ran ran = hold({"submit", "--wrap", "true"});
    EXPECT_EQ(ran.status, 0);
    EXPECT_EQ(ran.out, "submitted job-42\n");
    EXPECT_EQ(ran.err, "warning: job-42 waits: wants 9 gpus; the largest node has 4\n");
    EXPECT_EQ(hold({"submit", "--wrap", "true", "--dry-run"}).out,
              "would wait: wants 9 gpus; the largest node has 4\n");
}

TEST_F(Verbs, SubmitWaits) {
    server_.jobs.answer.set_job(43);
    EXPECT_EQ(hold({"submit", "--wrap", "true", "--wait"}).status, 0);
    server_.jobs.end_state = "failed";
    const Ran ran = hold({"submit", "--wrap", "true", "--wait"});
    EXPECT_EQ(ran.status, 1);
    EXPECT_THAT(ran.out, HasSubstr("submitted job-43\njob-43 failed"));
}

// -------------------------------------------------------------------------------------- wait, run

TEST_F(Verbs, WaitTellsHowItEnded) {
    EXPECT_EQ(hold({"wait", "45"}).status, 0);
    EXPECT_EQ(hold({"wait", "45"}).out, "job-45 completed\n");
    EXPECT_EQ(hold({"wait", "44_3"}).status, 1);
    EXPECT_EQ(hold({"wait", "44"}).out, "job-44_3 failed: task 0 exited with 3\n");
    EXPECT_EQ(hold({"wait", "45", "44"}).status, 1);
    EXPECT_EQ(hold({"wait", "42", "--timeout", "30s"}).status, 124);
    EXPECT_EQ(hold({"wait", "99"}).status, 3);
}

TEST_F(Verbs, RunIsTheCommand) {
    v1::Job done = element_job();
    done.set_id(42);
    done.clear_array_parent();
    const auto run_with = [&](const std::string& state, std::int32_t code, std::int32_t signal) {
        done.set_state(state);
        done.mutable_tasks(0)->set_state(state);
        done.mutable_tasks(0)->set_exit_code(code);
        done.mutable_tasks(0)->set_signal(signal);
        done.set_exit_code(code);
        server_.jobs.answer.set_job(43);
        done.set_id(43);
        server_.jobs.ended = done;
        server_.jobs.end_state = state;
        return hold({"run", "-N", "1", "--", "prog", "it's"});
    };
    const Ran good = run_with("completed", 0, 0);
    EXPECT_EQ(good.status, 0) << good.err;
    EXPECT_EQ(good.out, "one\ntwo\nagain");
    EXPECT_THAT(good.err, HasSubstr("oh\n"));
    EXPECT_EQ(server_.jobs.submitted.spec().run(), "exec prog 'it'\\''s'");
    EXPECT_EQ(server_.jobs.submitted.spec().name(), "prog");
    EXPECT_EQ(run_with("failed", 3, 0).status, 3);
    EXPECT_EQ(run_with("failed", 0, 9).status, 137);
    EXPECT_EQ(run_with("timeout", 0, 15).status, 124);
    EXPECT_EQ(run_with("node_fail", 0, 0).status, 1);
    EXPECT_EQ(hold({"run", "-N", "1"}).status, 2);
}

// ------------------------------------------------------------------------------------------- logs

TEST_F(Verbs, LogsPrefixLinesOfSeveralTasks) {
    const Ran ran = hold({"logs", "42"});
    EXPECT_EQ(ran.status, 0);
    EXPECT_EQ(ran.out, "[0] one\n[0] two\n[0] again\n");
    EXPECT_EQ(ran.err, "[1] oh\n");
    EXPECT_EQ(server_.jobs.logs_request.rank(), -1);
    EXPECT_EQ(hold({"logs", "42.1"}).out, "one\ntwo\nagain");
    EXPECT_EQ(server_.jobs.logs_request.rank(), 1);
    EXPECT_EQ(hold({"logs", "42", "--no-prefix"}).out, "one\ntwo\nagain");
}

TEST_F(Verbs, FollowedLogsSurviveABrokenStream) {
    server_.jobs.breaks = 2;
    const Ran ran = hold({"logs", "-f", "42", "--no-prefix"});
    EXPECT_EQ(ran.status, 0) << ran.err;
    EXPECT_EQ(ran.out, "one\ntwo\nagain");
    server_.jobs.breaks = 1;
    EXPECT_EQ(hold({"logs", "42"}).status, 6);
    server_.jobs.breaks = 1'000'000'000;
    EXPECT_EQ(hold({"logs", "-f", "--json", "42"}).status, 2);
}

// ---------------------------------------------------------------------------------- exit statuses

TEST_F(Verbs, EveryFailureHasItsStatus) {
    const std::vector<std::pair<int, std::vector<std::string>>> cases = {
        {2, {}},
        {2, {"jbos"}},
        {2, {"when", "42"}},
        {2, {"node"}},
        {2, {"node", "dran"}},
        {2, {"--bogus"}},
        {2, {"jobs", "-o", "yml"}},
        {2, {"jobs", "-t", "sleeping"}},
        {2, {"jobs", "--limit", "0"}},
        {2, {"why"}},
        {2, {"why", "x"}},
        {2, {"why", "42.1"}},
        {2, {"why", "43", "extra"}},
        {2, {"why", "43", "-o", "csv"}},
        {2, {"sql"}},
        {2, {"token", "create", "--role", "usr"}},
        {2, {"completion", "tcsh"}},
        {3, {"why", "7"}},
        {3, {"cancel", "44_9"}},
        {3, {"token", "revoke", "8"}},
        {3, {"server"}},
        {3, {"help", "bogus"}},
        {4, {"sql", "DROP TABLE job"}},
        {4, {"node", "cordon", "n01"}},
        {5, {"pause", "42"}},
        {5, {"node", "add", "n01"}},
        {6, {"jobs", "--server", "unix:/nonexistent/socket"}},
        {2, {"jobs", "--server", "nonsense"}},
        {2, {"jobs", "--server", "host:1"}},
        {3, {"jobs", "--token-file", "/nonexistent"}},
        {124, {"wait", "42", "--timeout", "1s"}},
        {0, {"help"}},
        {0, {"node", "--help"}},
        {0, {"version"}},
    };
    for (const auto& [status, arguments] : cases) {
        const Ran ran = hold(arguments);
        std::string line;
        for (const std::string& word : arguments) {
            line += " " + word;
        }
        EXPECT_EQ(ran.status, status) << "hold" << line << "\n" << ran.err;
        EXPECT_EQ(ran.err.empty(), status == 0) << "hold" << line;
    }
}

TEST_F(Verbs, UsageErrorsSuggest) {
    EXPECT_EQ(hold({"jbos"}).err,
              "hold: error: unknown verb `jbos`\n  hint: did you mean `jobs`?\n");
    EXPECT_EQ(hold({"squeue"}).err,
              "hold: error: unknown verb `squeue`\n  hint: did you mean `hold jobs`?\n");
    EXPECT_EQ(hold({"node", "dran"}).err,
              "hold: error: unknown verb `node dran`\n  hint: did you mean `drain`?\n");
    EXPECT_EQ(hold({"jobs", "--josn"}).err,
              "hold jobs: error: unknown flag `--josn`\n  at --josn\n  hint: did you mean "
              "`--json`?\n");
    EXPECT_EQ(hold({"when", "3"}).err,
              "hold: error: `hold when` is not built yet\n  hint: see `hold "
              "help` for what is there\n");
    EXPECT_EQ(hold({"jobs", "-t", "runing"}).err,
              "hold jobs: error: unknown job state `runing`\n  at --states\n  hint: did you mean "
              "`running`?\n");
}

TEST_F(Verbs, SeveralIdsGoOnAfterAnError) {
    const Ran ran = hold({"cancel", "99", "42"});
    EXPECT_EQ(ran.status, 3);
    EXPECT_EQ(ran.out, "job-42 cancelled\n");
    EXPECT_EQ(ran.err,
              "hold cancel: error: there is no job 99\n  at job\n  hint: see "
              "`hold jobs --all`\n");
}

// ------------------------------------------------------------------------- neighbours, help, shell

TEST_F(Verbs, NeighboursGetAllArguments) {
    setenv("HOLDFAST_LIBEXEC", "/opt/libexec", 1);
    const Ran server = hold({"server", "--data", "d", "--help"});
    EXPECT_EQ(server.program, "/opt/libexec/hold-server");
    EXPECT_EQ(server.arguments, (std::vector<std::string>{"--data", "d", "--help"}));
    const Ran agent = hold({"--server", "unix:/x", "agent", "--state", "s"});
    EXPECT_EQ(agent.program, "/opt/libexec/hold-agent");
    EXPECT_EQ(agent.arguments, (std::vector<std::string>{"--server", "unix:/x", "--state", "s"}));
    unsetenv("HOLDFAST_LIBEXEC");
}

TEST_F(Verbs, ServerFlagMayStandFirst) {
    unsetenv("HOLDFAST_SERVER");
    EXPECT_EQ(hold({"--server", server_.endpoint(), "jobs", "-o", "name"}).out, "job-42\njob-43\n");
    EXPECT_EQ(hold({"--server=" + server_.endpoint(), "jobs", "-o", "name"}).status, 0);
}

TEST(Help, EveryVerbFitsAScreenAndHasExamples) {
    for (const Verb& verb : all_verbs()) {
        const std::string text = hold({"help", verb.name}).out.empty()
                                     ? hold({"help", verb.name.substr(0, verb.name.find(' ')),
                                             verb.name.substr(verb.name.find(' ') + 1)})
                                           .out
                                     : hold({"help", verb.name}).out;
        const auto lines = std::count(text.begin(), text.end(), '\n');
        EXPECT_LE(lines, 40) << verb.name;
        EXPECT_THAT(text, HasSubstr("examples:\n  " + verb.examples[0]));
        EXPECT_FALSE(verb.examples[0].empty() || verb.examples[1].empty()) << verb.name;
        std::istringstream stream(text);
        for (std::string line; std::getline(stream, line);) {
            EXPECT_LE(line.size(), 110U) << verb.name << ": " << line;
        }
    }
    const std::string all = hold({"--help"}).out;
    EXPECT_LE(std::count(all.begin(), all.end(), '\n'), 48);
}

TEST(Help, CompletionsAndManPageNameEveryVerbAndFlag) {
    const std::string man = hold({"help", "--man"}).out;
    const std::string bash = hold({"completion", "bash"}).out;
    const std::string zsh = hold({"completion", "zsh"}).out;
    const std::string fish = hold({"completion", "fish"}).out;
    for (const Verb& verb : all_verbs()) {
        EXPECT_THAT(man, HasSubstr(".SS hold " + verb.name + "\n"));
        EXPECT_THAT(bash, HasSubstr("        \"" + verb.name + "\") flags="));
        EXPECT_THAT(zsh, HasSubstr("        '" + verb.name + "') flags="));
        EXPECT_THAT(fish, HasSubstr("-a " + verb.name.substr(verb.name.find(' ') + 1) + " -d "));
    }
    for (const std::string& text : {bash, zsh}) {
        EXPECT_THAT(text, HasSubstr("--gpus-per-node"));
        EXPECT_THAT(text, HasSubstr("--dry-run"));
    }
    EXPECT_THAT(fish, HasSubstr("-l dry-run"));
    EXPECT_THAT(man, HasSubstr(".B \\-N, \\-\\-nodes N\n"));
}

TEST(Help, PagesOfNeighbours) {
    const std::string page =
        hold({"help", "--man", "hold-agent"}, "usage: /b/x/hold-agent\n.x\n").out;
    EXPECT_THAT(page, StartsWith(".TH HOLD\\-AGENT 8 "));
    EXPECT_THAT(page, HasSubstr("usage: hold\\-agent\n\\&.x\n"));
}

TEST(Output, AFullDiskIsAnError) {
    FileStream full(::open("/dev/full", O_WRONLY));
    const auto written = full.write("text");
    ASSERT_FALSE(written.has_value());
    EXPECT_EQ(written.error().message, "write the output: No space left on device");
}

}  // namespace
}  // namespace holdfast::cli::testing
