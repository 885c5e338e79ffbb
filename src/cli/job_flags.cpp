// SPDX-License-Identifier: Apache-2.0
#include "job_flags.hpp"

#include <filesystem>
#include <system_error>

namespace holdfast::cli {
namespace {

struct Binding {
    const char* names;  ///< "-N,--nodes"
    std::optional<std::string> JobFlags::* value;
    const char* field;  ///< of JobRequest
    const char* value_name;
    const char* help;
};

constexpr Binding kBindings[] = {
    {"-J,--job-name", &JobFlags::name, "name", "NAME", "the job's name"},
    {"-N,--nodes", &JobFlags::nodes, "nodes", "N", "nodes; the tasks spread evenly over them"},
    {"-n,--ntasks", &JobFlags::tasks, "tasks", "N", "tasks, started together or not at all"},
    {"--ntasks-per-node", &JobFlags::tasks_per_node, "tasks_per_node", "N", "tasks on each node"},
    {"-c,--cpus-per-task", &JobFlags::cpus, "cpus_per_task", "N", "cores of each task"},
    {"-G,--gpus", &JobFlags::gpus, "gpus", "[TYPE:]N", "GPUs of the whole job"},
    {"--gpus-per-node", &JobFlags::gpus_per_node, "gpus_per_node", "[TYPE:]N", "GPUs on each node"},
    {"--gpus-per-task", &JobFlags::gpus_per_task, "gpus_per_task", "[TYPE:]N", "GPUs of each task"},
    {"--mem", &JobFlags::memory, "memory", "SIZE", "memory on each node: 200G"},
    {"--mem-per-cpu", &JobFlags::memory_per_cpu, "memory_per_cpu", "SIZE", "memory for each core"},
    {"-t,--time", &JobFlags::time_limit, "time_limit", "TIME",
     "limit: minutes, HH:MM:SS, D-HH:MM:SS, 30m, 4h"},
    {"-p,--partition", &JobFlags::pool, "pool", "POOL", "pool of nodes"},
    {"-D,--chdir", &JobFlags::workdir, "workdir", "DIR", "folder on the nodes"},
    {"-w,--nodelist", &JobFlags::nodelist, "nodelist", "HOSTS", "only these nodes: n[1-4],n7"},
    {"-x,--exclude", &JobFlags::exclude, "exclude", "HOSTS", "not these nodes"},
    {"--priority", &JobFlags::priority, "priority", "P", "low, normal, high or a number"},
    {"--recovery", &JobFlags::recovery, "recovery", "HOW",
     "none, requeue or recycle, when a node is lost"},
};

std::string first_long_name(const std::string& names) {
    return names.substr(names.find("--"));
}

}  // namespace

void declare_job_flags(Flags& flags, JobFlags& job) {
    for (const Binding& binding : kBindings) {
        flags.text(binding.names, job.*binding.value, binding.value_name, binding.help);
    }
    flags.list("-E,--env", job.env, "NAME=VALUE", "environment; may be given several times");
    flags.text("--user", job.user, "NAME", "run as this user (root and admins)");
    flags.integer("--retry-for", job.retry_for_s, 0, kRetryMaxS, "SECONDS",
                  "while no server answers (default 10)");
}

Result<JobRequest> request_from(const JobFlags& job) {
    JobRequest request;
    for (const Binding& binding : kBindings) {
        std::optional<std::string> text = job.*binding.value;
        if (!text) {
            continue;
        }
        if (std::string_view(binding.field) == "workdir") {
            std::error_code error;
            text = std::filesystem::absolute(*text, error).lexically_normal().string();
        }
        HOLD_TRY(set_field(request, binding.field, *text, first_long_name(binding.names)));
    }
    if (job.array) {
        HOLD_TRY(set_field(request, "array", *job.array, "--array"));
    }
    for (const std::string& pair : job.env) {
        HOLD_TRY(set_env(request, pair, "--env"));
    }
    return request;
}

}  // namespace holdfast::cli
