// SPDX-License-Identifier: Apache-2.0
/// checked() and the JSON form of a job.
#include <functional>

#include "world.hpp"

namespace holdfast::services {
namespace {

using testing::HasSubstr;

struct Refusal {
    const char* where;
    std::function<void(JobSpec&)> spoil;
    Errc code = Errc::invalid_argument;
};

TEST(Checked, RefusesWhatIsOutOfBoundsAndNamesTheField) {
    const std::string nul("a\0b", 3);
    const Refusal refusals[] = {
        {"run", [](JobSpec& s) { s.run = " \n "; }},
        {"run", [&](JobSpec& s) { s.run = nul; }},
        {"run", [](JobSpec& s) { s.run = "\xff"; }},
        {"run", [](JobSpec& s) { s.run = std::string(200'000, 'x'); }},
        {"name", [](JobSpec& s) { s.name = "two\nlines"; }},
        {"name", [](JobSpec& s) { s.name = std::string(201, 'x'); }},
        {"tasks", [](JobSpec& s) { s.tasks = -1; }},
        {"tasks", [](JobSpec& s) { s.tasks = 10'001; }},
        {"pool", [](JobSpec& s) { s.pool = "a b"; }},
        {"per_task.cpus", [](JobSpec& s) { s.per_task.cpus = -1; }},
        {"per_task.memory_bytes", [](JobSpec& s) { s.per_task.memory_bytes = -1; }},
        {"per_task.gpus", [](JobSpec& s) { s.per_task.gpus = 1025; }},
        {"per_task.gpu_type", [](JobSpec& s) { s.per_task.gpu_type = "h100"; }},
        {"priority", [](JobSpec& s) { s.priority = 1'000'001; }},
        {"time_limit_s", [](JobSpec& s) { s.time_limit_s = -1; }},
        {"tasks_per_node", [](JobSpec& s) { s.tasks_per_node = -1; }},
        {"workdir", [](JobSpec& s) { s.workdir = "relative"; }},
        {"env", [](JobSpec& s) { s.env["1A"] = "x"; }},
        {"env", [](JobSpec& s) { s.env[""] = "x"; }},
        {"env.A", [&](JobSpec& s) { s.env["A"] = nul; }},
        {"env",
         [](JobSpec& s) {
             for (int i = 0; i < 1001; ++i) {
                 s.env["V" + std::to_string(i)] = "";
             }
         }},
        {"env",
         [](JobSpec& s) {
             for (int i = 0; i < 3; ++i) {
                 s.env["V" + std::to_string(i)] = std::string(100'000, 'x');
             }
         }},
        {"array", [](JobSpec& s) { s.array = {1, 1}; }},
        {"array", [](JobSpec& s) { s.array = {-1}; }},
        {"array", [](JobSpec& s) { s.array.resize(10'001); }},
        {"array",
         [](JobSpec& s) {
             s.tasks = 1000;
             for (int i = 0; i < 21; ++i) {
                 s.array.push_back(i);
             }
         }},
        {"array_at_once", [](JobSpec& s) { s.array_at_once = 2; }},
        {"recovery", [](JobSpec& s) { s.recovery = "hope"; }},
        {"recovery", [](JobSpec& s) { s.recovery = "recycle"; }},
        {"recovery", [](JobSpec& s) { s.recovery = "vm"; }, Errc::unsupported},
        {"nodes", [](JobSpec& s) { s.nodes = {"n1", "n1"}; }},
        {"exclude_nodes",
         [](JobSpec& s) {
             s.nodes = {"n1"};
             s.exclude_nodes = {"n1"};
         }},
    };
    for (const Refusal& refusal : refusals) {
        JobSpec spec = command();
        refusal.spoil(spec);
        const auto answer = checked(spec);
        ASSERT_FALSE(answer.has_value()) << refusal.where;
        EXPECT_EQ(answer.error().code, refusal.code) << answer.error().message;
        EXPECT_EQ(answer.error().where, refusal.where) << answer.error().message;
    }
}

TEST(Checked, RefusesTrainingOutOfBounds) {
    const Refusal refusals[] = {
        {"training.pipelines", [](JobSpec& s) { s.training->pipelines = 0; }},
        {"training.stages", [](JobSpec& s) { s.training->stages = 0; }},
        {"training.stages", [](JobSpec& s) { s.training->stages = 7; }},
        {"training.microbatches", [](JobSpec& s) { s.training->microbatches = 0; }},
        {"training.steps", [](JobSpec& s) { s.training->steps = 0; }},
        {"training.model", [](JobSpec& s) { s.training->model = "gpt-9"; }},
        {"training.backend", [](JobSpec& s) { s.training->backend = "abacus"; }},
        {"training.data", [](JobSpec& s) { s.training->data = ""; }},
        {"training.data", [](JobSpec& s) { s.training->data = "text"; }},
        {"training",
         [](JobSpec& s) {
             s.training->pipelines = 256;
             s.training->stages = 6;
         }},
        {"tasks", [](JobSpec& s) { s.tasks = 5; }},
        {"run", [](JobSpec& s) { s.run = "true"; }},
        {"array", [](JobSpec& s) { s.array = {1}; }, Errc::unsupported},
        {"recovery", [](JobSpec& s) { s.recovery = "requeue"; }, Errc::unsupported},
    };
    for (const Refusal& refusal : refusals) {
        JobSpec spec = training(2, 3);
        refusal.spoil(spec);
        const auto answer = checked(spec);
        ASSERT_FALSE(answer.has_value()) << refusal.where;
        EXPECT_EQ(answer.error().code, refusal.code) << answer.error().message;
        EXPECT_EQ(answer.error().where, refusal.where) << answer.error().message;
    }
}

TEST(Checked, FillsDefaults) {
    JobSpec asked;
    asked.run = "true";
    asked.per_task.cpus = 0;
    asked.pool = "";
    asked.tasks = 0;
    const JobSpec spec = checked(asked).value();
    EXPECT_EQ(spec.name, "job");
    EXPECT_EQ(spec.tasks, 1);
    EXPECT_EQ(spec.per_task.cpus, 1);
    EXPECT_EQ(spec.per_task.gpus, 0);
    EXPECT_EQ(spec.pool, "default");
    EXPECT_EQ(spec.recovery, "requeue");

    asked = training(2, 3);
    asked.name = "";
    const JobSpec trained = checked(asked).value();
    EXPECT_EQ(trained.name, "gpt-small");
    EXPECT_EQ(trained.tasks, 6);
    EXPECT_EQ(trained.per_task.gpus, 1);
    EXPECT_EQ(trained.recovery, "recycle");
    EXPECT_EQ(checked(trained).value(), trained);
}

JobSpec full() {
    JobSpec spec = command(3, 2);
    spec.name = "naïve \"job\"";
    spec.run = "echo 'a'\n\techo \\b é\n";
    spec.env = {{"A", ""}, {"B", "x=y\n"}};
    spec.workdir = "/tmp/a b";
    spec.per_task.gpu_type = "h100";
    spec.pool = "gpu";
    spec.priority = -7;
    spec.time_limit_s = 3600;
    spec.array = {0, 5, 9};
    spec.array_at_once = 2;
    spec.recovery = "none";
    spec.nodes = {"n1"};
    spec.exclude_nodes = {"n2", "n3"};
    spec.hold = true;
    spec.tasks_per_node = 1;
    spec.training =
        TrainingSpec{2, 3, 4, "gpt-tiny", 5, true, "/data", 18446744073709551615U, "reference"};
    return spec;
}

TEST(JobSpecJson, RoundTripsExactly) {
    for (const JobSpec& spec : {JobSpec{}, full(), command(), training(2, 2)}) {
        const auto back = job_spec_from_json(to_json(spec));
        ASSERT_TRUE(back.has_value()) << back.error().message;
        EXPECT_EQ(*back, spec);
    }
    EXPECT_EQ(job_spec_from_json("{}").value(), JobSpec{});
}

TEST(JobSpecJson, RefusesWhatItDoesNotKnowByName) {
    const std::pair<const char*, const char*> cases[] = {
        {R"({"nmae": "x"})", "nmae"},
        {R"({"per_task": {"gpu": 1}})", "per_task.gpu"},
        {R"({"training": {"pipes": 1}})", "training.pipes"},
        {R"({"name": 1})", "name"},
        {R"({"tasks": "1"})", "tasks"},
        {R"({"tasks": 1.5})", "tasks"},
        {R"({"tasks": 3000000000})", "tasks"},
        {R"({"per_task": {"gpus": 18446744073709551615}})", "per_task.gpus"},
        {R"({"training": {"seed": -1}})", "training.seed"},
        {R"({"hold": 1})", "hold"},
        {R"({"nodes": "n1"})", "nodes"},
        {R"({"env": {"A": 1}})", "env.A"},
        {R"([])", "spec"},
        {R"({"name": )", "byte 10"},
        {"", "byte 1"},
    };
    for (const auto& [text, where] : cases) {
        const auto answer = job_spec_from_json(text);
        ASSERT_FALSE(answer.has_value()) << text;
        EXPECT_EQ(answer.error().code, Errc::invalid_argument);
        EXPECT_EQ(answer.error().where, where) << answer.error().message;
    }
}

TEST(JobSpecJson, TextThatIsNotUtf8DoesNotThrow) {
    JobSpec spec;
    spec.run = "\xff";
    EXPECT_THAT(to_json(spec), HasSubstr("\"run\":"));
}

}  // namespace
}  // namespace holdfast::services
