// SPDX-License-Identifier: Apache-2.0
// Goal: a job file or script becomes exactly the job that its author meant, or is refused with the
// place and the reason. Method: texts against the API's message, and against whole error lines.
#include "job_file.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "yaml_tree.hpp"

namespace holdfast::cli {
namespace {

Result<v1::JobSpec> spec_of(const std::string& text) {
    return read_job_file(text, "job.yaml").and_then(to_spec);
}

Result<v1::JobSpec> script_spec(const std::string& text) {
    return read_batch_script(text, "job.sh", {}).and_then(to_spec);
}

v1::JobSpec good(const std::string& text) {
    auto spec = spec_of(text);
    EXPECT_TRUE(spec.has_value()) << text << "\n" << (spec ? "" : spec.error().describe());
    return spec.value_or(v1::JobSpec());
}

/// "code: message (at where); hint"
template <typename T>
std::string refusal(const Result<T>& result) {
    if (result.has_value()) {
        return "accepted";
    }
    return std::string(to_string(result.error().code)) + ": " + result.error().describe();
}

TEST(JobFile, OnlyRunIsNeeded) {
    const v1::JobSpec spec = good("run: hostname\n");
    EXPECT_EQ(spec.run(), "hostname");
    EXPECT_EQ(spec.tasks(), 1);
    EXPECT_EQ(spec.tasks_per_node(), 0);
    EXPECT_EQ(spec.per_task().cpus(), 1);
    EXPECT_EQ(spec.per_task().memory_bytes(), 0);
    EXPECT_EQ(spec.per_task().gpus(), 0);
    EXPECT_EQ(spec.pool(), "default");
    EXPECT_EQ(spec.priority(), 0);
    EXPECT_EQ(spec.time_limit_s(), 0);
    EXPECT_EQ(spec.array_size(), 0);
    EXPECT_EQ(spec.recovery(), "");
    EXPECT_FALSE(spec.has_training());
    EXPECT_FALSE(spec.hold());
}

TEST(JobFile, EveryField) {
    const v1::JobSpec spec = good(R"(
name: gpt-pretrain
pool: h100
priority: high
nodes: {min: 2, want: 2}
gpus_per_node: h100:8
ntasks: 16
cpus_per_task: 4
memory: 200G
time_limit: 2-00:00:00
array: 0-9%4
env: {LR: "3e-4", N: 3, EMPTY: ""}
workdir: /shared/run
recovery: requeue
nodelist: n[1-4]
exclude: [n3, "n4"]
hold: true
run: |
  torchrun train.py \
    --lr $LR
)");
    EXPECT_EQ(spec.name(), "gpt-pretrain");
    EXPECT_EQ(spec.pool(), "h100");
    EXPECT_EQ(spec.priority(), 100);
    EXPECT_EQ(spec.tasks(), 16);
    EXPECT_EQ(spec.tasks_per_node(), 8);
    EXPECT_EQ(spec.per_task().gpus(), 1);
    EXPECT_EQ(spec.per_task().gpu_type(), "h100");
    EXPECT_EQ(spec.per_task().cpus(), 4);
    EXPECT_EQ(spec.per_task().memory_bytes(), (std::int64_t{200} << 30) / 8);
    EXPECT_EQ(spec.time_limit_s(), 172'800);
    EXPECT_EQ(spec.array_size(), 10);
    EXPECT_EQ(spec.array_at_once(), 4);
    EXPECT_EQ(spec.env().at("LR"), "3e-4");
    EXPECT_EQ(spec.env().at("N"), "3");
    EXPECT_EQ(spec.env().at("EMPTY"), "");
    EXPECT_EQ(spec.workdir(), "/shared/run");
    EXPECT_EQ(spec.recovery(), "requeue");
    EXPECT_EQ(spec.nodes_size(), 4);
    EXPECT_EQ(spec.exclude_nodes_size(), 2);
    EXPECT_TRUE(spec.hold());
    EXPECT_EQ(spec.run(), "torchrun train.py \\\n  --lr $LR\n");
}

TEST(JobFile, NodesAndTasksShapeTheGang) {
    const auto shape = [](const std::string& text) {
        const v1::JobSpec spec = good("run: x\n" + text);
        return std::vector<std::int64_t>{spec.tasks(), spec.tasks_per_node(),
                                         spec.per_task().gpus()};
    };
    using Shape = std::vector<std::int64_t>;
    EXPECT_EQ(shape("nodes: 4\ngpus_per_node: 8\n"), (Shape{4, 1, 8}));
    EXPECT_EQ(shape("nodes: 4\ntasks: 8\ngpus_per_node: 8\n"), (Shape{8, 2, 4}));
    EXPECT_EQ(shape("nodes: 4\ntasks_per_node: 2\ngpus: 16\n"), (Shape{8, 2, 2}));
    EXPECT_EQ(shape("tasks: 4\ngpus_per_task: 1\n"), (Shape{4, 0, 1}));
    EXPECT_EQ(shape("gpus_per_node: 8\n"), (Shape{1, 0, 8}));
    EXPECT_EQ(shape("tasks: 4\ntasks_per_node: 2\ngpus_per_node: 2\n"), (Shape{4, 2, 1}));
    EXPECT_EQ(shape("nodes: 1\ntasks: 3\n"), (Shape{3, 3, 0}));
}

TEST(JobFile, Training) {
    const v1::JobSpec spec = good(
        "training: {pipelines: 2, stages: 3, microbatches: 6, model: gpt-tiny, steps: 100, exact: "
        "true, data: /data/t.txt, seed: 7, backend: reference}\ngpus_per_task: 1\n");
    EXPECT_EQ(spec.tasks(), 6);
    EXPECT_EQ(spec.run(), "");
    EXPECT_EQ(spec.name(), "training");
    EXPECT_EQ(spec.training().pipelines(), 2);
    EXPECT_EQ(spec.training().stages(), 3);
    EXPECT_EQ(spec.training().microbatches(), 6);
    EXPECT_EQ(spec.training().model(), "gpt-tiny");
    EXPECT_EQ(spec.training().steps(), 100);
    EXPECT_TRUE(spec.training().exact());
    EXPECT_EQ(spec.training().data(), "/data/t.txt");
    EXPECT_EQ(spec.training().seed(), 7U);
    EXPECT_EQ(spec.training().backend(), "reference");
}

TEST(JobFile, TrainingDefaults) {
    const v1::JobSpec spec = good("training: {stages: 3, steps: 5}\n");
    EXPECT_EQ(spec.training().pipelines(), 1);
    EXPECT_EQ(spec.training().microbatches(), 3);
    EXPECT_EQ(spec.training().model(), "gpt-small");
    EXPECT_EQ(spec.training().data(), "/usr/share/common-licenses/GPL-3");
    EXPECT_EQ(spec.training().seed(), 1U);
    EXPECT_EQ(spec.training().backend(), "torch");
    EXPECT_FALSE(spec.training().exact());
}

TEST(JobFile, EveryRefusalNamesPlaceAndReason) {
    const std::vector<std::pair<std::string, std::string>> cases = {
        {"",
         "invalid_argument: the job file is empty (at job.yaml:1:1); write at least `run: "
         "COMMAND`"},
        {"- a\n",
         "invalid_argument: a job file is a map of keys, not a list (at job.yaml:1:1); "
         "write at least `run: COMMAND`"},
        {"run: x\ntime_limt: 3\n",
         "invalid_argument: unknown key `time_limt` (at job.yaml:2:1); "
         "did you mean `time_limit`?"},
        {"run: x\ncpus: 3\n",
         "invalid_argument: unknown key `cpus` (at job.yaml:2:1); the key is "
         "called `cpus_per_task` here"},
        {"run: x\naccount: nlp\n",
         "unsupported: `account` is not built yet (at job.yaml:2:1); remove the key"},
        {"run: x\npreemptible: true\n",
         "unsupported: `preemptible` is not built yet (at job.yaml:2:1); remove the key"},
        {"run: x\nrecovery: vm\n",
         "unsupported: recovery: `vm` is not built yet (at "
         "job.yaml:2:11); choose none, requeue or recycle"},
        {"run: x\nnodes: {min: 6, want: 8}\n",
         "unsupported: `nodes`: a range (6 to 8) is not built yet (at job.yaml:2:1); give min and "
         "want the same number"},
        {"run: x\nnodes: 2-4\n",
         "unsupported: nodes: a range of nodes (2-4) is not built yet (at "
         "job.yaml:2:8); name one number of nodes"},
        {"run: x\nnodes: {max: 3}\n",
         "invalid_argument: unknown key `nodes.max` (at job.yaml:2:9); known keys: min, want"},
        {"run: x\nrun: y\n", "invalid_argument: the key `run` is given twice (at job.yaml:2:1)"},
        {"run: x\ntasks: 1\nntasks: 2\n",
         "invalid_argument: `ntasks` says again what was said at job.yaml:2:8 (at job.yaml:3:1); "
         "keep one of them"},
        {"run: x\ntasks: \"4\"\n",
         "invalid_argument: tasks: a number is wanted, not text in quotes (at job.yaml:2:8); "
         "remove "
         "the quotes"},
        {"run: x\ntasks: four\n",
         "invalid_argument: tasks: `four` is not a whole number from 1 to "
         "65536 (at job.yaml:2:8)"},
        {"run: x\ntasks: 0\n",
         "invalid_argument: tasks: 0 is outside 1 to 65536 (at job.yaml:2:8)"},
        {"run: x\ntasks: [1]\n",
         "invalid_argument: tasks: a number is wanted, not a list (at job.yaml:2:8)"},
        {"run: x\nhold: yes\n",
         "invalid_argument: hold: `yes` is neither true nor false (at job.yaml:2:7)"},
        {"run:\n", "invalid_argument: run: a value is wanted, not nothing (at job.yaml:1:1)"},
        {"name: x\n",
         "invalid_argument: the job has nothing to do: `run` is missing (at run); add "
         "`run: COMMAND`, or `training:` for a pipeline job"},
        {"run: x\ntime_limit: soon\n",
         "invalid_argument: time_limit: `soon` is not a time (at job.yaml:2:13); write minutes, "
         "MM:SS, HH:MM:SS, D-HH, D-HH:MM:SS, or 90s, 30m, 4h, 2d"},
        {"run: x\nworkdir: here\n",
         "invalid_argument: workdir: the folder `here` is not an absolute path (at job.yaml:2:10); "
         "jobs run on other machines: begin the path with /"},
        {"run: x\nenv: [A]\n",
         "invalid_argument: env: a map is wanted, not a list (at "
         "job.yaml:2:6); write env: {NAME: \"value\"}"},
        {"run: x\nenv: {1A: b}\n",
         "invalid_argument: env: `1A=b` is not NAME=VALUE (at job.yaml:2:7); a name has letters, "
         "digits and _, and no digit in front"},
        {"run: x\nnodes: 3\ntasks: 4\n",
         "unsupported: 4 tasks do not spread evenly over 3 nodes; uneven spreads are not built yet "
         "(at job.yaml:3:8); ask for a multiple, or leave out nodes"},
        {"run: x\nnodes: 3\ntasks: 2\n",
         "invalid_argument: 3 nodes for 2 tasks: some would be empty (at job.yaml:2:8); ask for "
         "fewer nodes or more tasks"},
        {"run: x\nnodes: 2\ngpus_per_node: 3\ntasks: 4\n",
         "invalid_argument: gpus_per_node 3 cannot be shared evenly by 2 tasks (at "
         "job.yaml:3:16); ask for a multiple, or say gpus_per_task"},
        {"run: x\ntasks: 4\nmemory: 4G\n",
         "invalid_argument: memory is per node, but not said is how many of the 4 tasks share one "
         "(at job.yaml:3:9); add nodes or tasks_per_node"},
        {"run: x\ngpus: 1\ngpus_per_task: 1\n",
         "invalid_argument: GPUs are asked for in 2 ways (at job.yaml:2:7); keep one of gpus, "
         "gpus_per_node and gpus_per_task"},
        {"run: x\nrecovery: recycle\n",
         "invalid_argument: recovery: recycle is for training jobs (at job.yaml:2:11); choose none "
         "or requeue"},
        {"training: {steps: 3}\nrecovery: requeue\n",
         "invalid_argument: recovery: requeue is not for training jobs, which go on in place (at "
         "job.yaml:2:11); choose recycle or none"},
        {"run: x\ntraining: {steps: 3}\n",
         "invalid_argument: a training job has no `run` (at job.yaml:1:6); remove run, or remove "
         "training"},
        {"training: {stages: 3}\n",
         "invalid_argument: training.steps is missing (at job.yaml:1:1); say how many optimizer "
         "steps: steps: 100"},
        {"training: {steps: 3, model: gpt-smal}\n",
         "invalid_argument: training.model: unknown `gpt-smal` (at job.yaml:1:29); did you mean "
         "`gpt-small`?"},
        {"training: {steps: 3, exat: true}\n",
         "invalid_argument: unknown key `training.exat` (at job.yaml:1:22); did you mean `exact`?"},
        {"training: {steps: 3, stages: 0}\n",
         "invalid_argument: training.stages: 0 is outside 1 to 4096 (at job.yaml:1:30)"},
        {"training: {steps: 3, stages: 2}\ntasks: 3\n",
         "invalid_argument: a training job has pipelines × stages = 2 tasks, not 3 (at "
         "job.yaml:2:8); leave out tasks"},
        {"training: {steps: 3, data: x.txt}\n",
         "invalid_argument: training.data: `x.txt` is not an absolute path (at job.yaml:1:28); "
         "name a text file that every node has"},
        {"training: {steps: 3}\narray: 0-3\n",
         "unsupported: an array of training jobs is not built yet (at job.yaml:2:8); submit the "
         "jobs one by one"},
        {"run: &a x\n",
         "invalid_argument: anchors are not allowed here (at job.yaml:1:6); write "
         "the value out where it is used"},
        {"run: !!python/x y\n",
         "invalid_argument: the tag `tag:yaml.org,2002:python/x` is not allowed here (at "
         "job.yaml:1:6); remove it"},
        {"run: [a\n",
         "invalid_argument: not valid YAML: end of sequence flow not found (at "
         "job.yaml:2:1)"},
        {"run: a\n---\nrun: b\n",
         "invalid_argument: the file holds more than one document (at job.yaml:3:1); put each job "
         "into a file of its own"},
        {"run: a\x01\n", "invalid_argument: a control character (\\x01) (at job.yaml:1:7)"},
        {"run: \xff\n", "invalid_argument: the job file is not UTF-8 text (at job.yaml)"},
        {"? [a]\n: b\n", "invalid_argument: a key must be a word, not a list (at job.yaml:1:3)"},
    };
    for (const auto& [text, message] : cases) {
        EXPECT_EQ(refusal(spec_of(text)), message) << text;
    }
}

TEST(JobFile, PartsNotBuiltAreNamed) {
    for (const std::string key : {"account", "preemptible", "min_runtime", "topology", "after",
                                  "secrets", "checkpoint", "notify"}) {
        const auto spec = spec_of("run: x\n" + key + ": 1\n");
        ASSERT_FALSE(spec.has_value()) << key;
        EXPECT_EQ(spec.error().code, Errc::unsupported) << key;
        EXPECT_EQ(spec.error().where, "job.yaml:2:1") << key;
        EXPECT_NE(spec.error().message.find("`" + key + "`"), std::string::npos);
    }
}

TEST(JobFile, SizeDepthAndAliasesAreBounded) {
    EXPECT_EQ(refusal(parse_yaml(std::string(kYamlBytesMax + 1, 'a'), "f")),
              "too_large: the job file has 1048577 bytes; at most 1048576 are read (at f)");
    const std::string deep = std::string(33, '[') + std::string(33, ']');
    EXPECT_EQ(refusal(parse_yaml(deep, "f")),
              "too_large: nested deeper than 32 levels (at f:1:33)");
    EXPECT_TRUE(parse_yaml(std::string(32, '[') + std::string(32, ']'), "f").has_value());
    EXPECT_FALSE(parse_yaml(std::string(100'000, '['), "f").has_value());
    EXPECT_FALSE(parse_yaml("a: &x [1]\nb: [*x, *x]\n", "f").has_value());
    std::string many = "[";
    for (int i = 0; i < 100'001; ++i) {
        many += "1,";
    }
    const auto refused = parse_yaml(many + "]", "f");
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().message, "more than 100000 values");
}

TEST(JobFile, RunIsBoundedByWhatAProcessCanTake) {
    const auto spec = spec_of("run: " + std::string(kRunBytesMax + 1, 'x') + "\n");
    EXPECT_EQ(refusal(spec).substr(0, 64),
              "too_large: run has 122881 bytes; at most 122880 are possible (at");
}

TEST(Request, FlagsWinOverTheFile) {
    auto file =
        read_job_file("run: x\nnodes: 4\ngpus_per_node: 8\nenv: {A: \"1\", B: \"2\"}\n", "f");
    ASSERT_TRUE(file.has_value());
    JobRequest flags;
    ASSERT_TRUE(set_field(flags, "nodes", "2", "--nodes"));
    ASSERT_TRUE(set_field(flags, "gpus_per_task", "1", "--gpus-per-task"));
    ASSERT_TRUE(set_env(flags, "B=3", "--env"));
    const auto spec = to_spec(merged(*file, flags));
    ASSERT_TRUE(spec.has_value()) << spec.error().describe();
    EXPECT_EQ(spec->tasks(), 2);
    EXPECT_EQ(spec->per_task().gpus(), 1);
    EXPECT_EQ(spec->env().at("A"), "1");
    EXPECT_EQ(spec->env().at("B"), "3");
}

TEST(BatchScript, Directives) {
    const auto spec = script_spec(
        "#!/bin/sh\n"
        "# a comment\n"
        "#SBATCH --job-name=train -N2\n"
        "#SBATCH --ntasks 4 -c 2   # with a comment\n"
        "#SBATCH --gres=gpu:a100:8\n"
        "#SBATCH --mem=200G -t 2-00:00:00\n"
        "#SBATCH -p \"big pool\"\n"
        "\n"
        "#SBATCH -a 0-3%2 --no-requeue -H -x n[3-4]\n"
        "echo hello\n"
        "#SBATCH --bogus-but-after-the-first-command\n");
    ASSERT_TRUE(spec.has_value()) << spec.error().describe();
    EXPECT_EQ(spec->name(), "train");
    EXPECT_EQ(spec->tasks(), 4);
    EXPECT_EQ(spec->tasks_per_node(), 2);
    EXPECT_EQ(spec->per_task().cpus(), 2);
    EXPECT_EQ(spec->per_task().gpus(), 4);
    EXPECT_EQ(spec->per_task().gpu_type(), "a100");
    EXPECT_EQ(spec->per_task().memory_bytes(), std::int64_t{100} << 30);
    EXPECT_EQ(spec->time_limit_s(), 172'800);
    EXPECT_EQ(spec->pool(), "big pool");
    EXPECT_EQ(spec->array_size(), 4);
    EXPECT_EQ(spec->array_at_once(), 2);
    EXPECT_EQ(spec->recovery(), "none");
    EXPECT_TRUE(spec->hold());
    EXPECT_EQ(spec->exclude_nodes_size(), 2);
}

TEST(BatchScript, RefusalsNameTheDirective) {
    const std::vector<std::pair<std::string, std::string>> cases = {
        {"#!/bin/sh\n#SBATCH --ntask=4\n",
         "invalid_argument: unknown directive #SBATCH --ntask "
         "(at job.sh:2); did you mean `--ntasks`?"},
        {"#!/bin/sh\n#SBATCH -o out.txt\n",
         "unsupported: #SBATCH -o is not supported (at job.sh:2); output is kept by the server: "
         "see `hold logs`; remove it"},
        {"#!/bin/sh\n#SBATCH --mail-type=END\n",
         "unsupported: #SBATCH --mail-type is not supported (at job.sh:2); notifications are not "
         "built yet; use `hold wait`"},
        {"#!/bin/sh\n#SBATCH -N\n", "invalid_argument: #SBATCH -N needs a value (at job.sh:2)"},
        {"#!/bin/sh\n#SBATCH --hold=yes\n",
         "invalid_argument: #SBATCH --hold takes no value (at job.sh:2)"},
        {"#!/bin/sh\n#SBATCH -N two\n",
         "invalid_argument: #SBATCH -N: nodes: `two` is not a whole "
         "number from 1 to 65536 (at job.sh:2)"},
        {"#!/bin/sh\n#SBATCH --gres=fpga:1\n",
         "unsupported: #SBATCH --gres=fpga:1: only gpu is known (at job.sh:2); write --gres=gpu:N "
         "or --gres=gpu:TYPE:N"},
        {"#!/bin/sh\n#SBATCH -J 'a\n",
         "invalid_argument: #SBATCH: the quote ' is not closed (at job.sh:2)"},
        {"echo\n",
         "invalid_argument: a batch script begins with #! (at job.sh:1); write "
         "#!/bin/bash as its first line"},
        {"#!\n",
         "invalid_argument: the script's #! names no interpreter (at job.sh:1); write "
         "#!/bin/bash as its first line"},
        {"#!/bin/sh\r\n",
         "invalid_argument: the script has DOS line ends (at job.sh); convert it "
         "with `sed -i 's/\\r$//'`"},
    };
    for (const auto& [text, message] : cases) {
        EXPECT_EQ(refusal(script_spec(text)), message) << text;
    }
}

TEST(BatchScript, GresForms) {
    const auto gpus = [](const std::string& gres) {
        const auto spec = script_spec("#!/bin/sh\n#SBATCH --gres=" + gres + "\necho\n");
        return spec ? std::to_string(spec->per_task().gpus()) + spec->per_task().gpu_type()
                    : "refused";
    };
    EXPECT_EQ(gpus("gpu"), "1");
    EXPECT_EQ(gpus("gpu:4"), "4");
    EXPECT_EQ(gpus("gpu:a100"), "1a100");
    EXPECT_EQ(gpus("gpu:a100:2"), "2a100");
    EXPECT_EQ(gpus("gpu:"), "refused");
}

TEST(BatchScript, RunsWithItsOwnInterpreter) {
    EXPECT_EQ(script_as_run("#!/bin/sh\necho a\n", {}), "#!/bin/sh\necho a\n");
    EXPECT_EQ(script_as_run("#!/bin/bash -l\necho a", {"x y"}),
              "exec /bin/bash -l /dev/fd/3 'x y' 3<<'HOLDFAST_SCRIPT_END'\n#!/bin/bash -l\necho "
              "a\nHOLDFAST_SCRIPT_END\n");
    EXPECT_EQ(script_as_run("#!/usr/bin/env python3\nHOLDFAST_SCRIPT_END\n", {}),
              "exec /usr/bin/env python3 /dev/fd/3 3<<'HOLDFAST_SCRIPT_END_'\n#!/usr/bin/env "
              "python3\nHOLDFAST_SCRIPT_END\nHOLDFAST_SCRIPT_END_\n");
}

TEST(BatchScript, WarnsOfSrun) {
    EXPECT_EQ(script_warnings("#!/bin/sh\n  srun python x\n").size(), 1U);
    EXPECT_TRUE(script_warnings("#!/bin/sh\npython x\n").empty());
}

}  // namespace
}  // namespace holdfast::cli
