// SPDX-License-Identifier: Apache-2.0
#include "start_task.hpp"

#include <algorithm>
#include <charconv>
#include <optional>

#include <nlohmann/json.hpp>

namespace holdfast::server {
namespace {

/// Ports below the kernel's range for outgoing connections; jobs next to each other differ.
constexpr std::int64_t kMasterPortFirst = 20'000;
constexpr std::int64_t kMasterPorts = 12'000;

/// "n07" → {"n", "07"}; nothing for a name without digits at its end.
struct Numbered {
    std::string prefix;
    std::string digits;
};

std::optional<Numbered> split_number(const std::string& name) {
    constexpr std::size_t kDigitsMax = 9;
    std::size_t begin = name.size();
    while (begin > 0 && name[begin - 1] >= '0' && name[begin - 1] <= '9' &&
           name.size() - begin < kDigitsMax) {
        --begin;
    }
    if (begin == name.size()) {
        return std::nullopt;
    }
    return Numbered{name.substr(0, begin), name.substr(begin)};
}

std::int64_t number_of(const std::string& digits) {
    std::int64_t value = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return value;
}

/// The numbers of one prefix as ranges: {01, 02, 03, 07} → "01-03,07".
std::string ranges_of(const std::vector<std::string>& digits) {
    std::string text;
    for (std::size_t i = 0; i < digits.size();) {
        std::size_t end = i + 1;
        while (end < digits.size() && digits[end].size() == digits[i].size() &&
               number_of(digits[end]) == number_of(digits[end - 1]) + 1) {
            ++end;
        }
        text += text.empty() ? "" : ",";
        text += end - i == 1 ? digits[i] : digits[i] + "-" + digits[end - 1];
        i = end;
    }
    return text;
}

std::vector<std::string> nodes_in_order(const std::vector<services::TaskRow>& tasks) {
    std::vector<std::string> names;
    for (const services::TaskRow& task : tasks) {
        if (!task.node.empty() && std::find(names.begin(), names.end(), task.node) == names.end()) {
            names.push_back(task.node);
        }
    }
    return names;
}

std::string slots_text(const std::vector<std::int32_t>& slots) {
    std::string text;
    for (const std::int32_t slot : slots) {
        text += (text.empty() ? "" : ",") + std::to_string(slot);
    }
    return text;
}

std::string address_of(const std::map<std::string, std::string>& addresses,
                       const std::string& node) {
    const auto found = addresses.find(node);
    return found == addresses.end() ? std::string() : found->second;
}

void add_training(const services::JobRow& job, const services::TaskRow& task,
                  const std::map<std::string, std::string>& addresses,
                  std::map<std::string, std::string>& env) {
    if (!job.spec.training) {
        return;
    }
    env["HOLDFAST_WORKER"] = task.worker;
    env["HOLDFAST_DATA_HOST"] = address_of(addresses, task.node);
    const auto& spec = *job.spec.training;
    env["HOLDFAST_TRAINING"] = nlohmann::json{{"pipelines", spec.pipelines},
                                              {"stages", spec.stages},
                                              {"microbatches", spec.microbatches},
                                              {"model", spec.model},
                                              {"steps", spec.steps},
                                              {"exact", spec.exact},
                                              {"data", spec.data},
                                              {"seed", spec.seed},
                                              {"backend", spec.backend}}
                                   .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::string host_list(const std::vector<std::string>& names) {
    struct Group {
        std::string prefix;
        std::vector<std::string> digits;
    };

    std::vector<Group> groups;
    for (const std::string& name : names) {
        const auto numbered = split_number(name);
        if (!numbered) {
            groups.push_back({name, {}});
            continue;
        }
        const auto same = std::find_if(groups.begin(), groups.end(), [&](const Group& group) {
            return !group.digits.empty() && group.prefix == numbered->prefix;
        });
        if (same == groups.end()) {
            groups.push_back({numbered->prefix, {numbered->digits}});
        } else {
            same->digits.push_back(numbered->digits);
        }
    }
    std::string text;
    for (const Group& group : groups) {
        text += text.empty() ? "" : ",";
        text += group.prefix;
        if (group.digits.size() == 1) {
            text += group.digits.front();
        } else if (group.digits.size() > 1) {
            text += "[" + ranges_of(group.digits) + "]";
        }
    }
    return text;
}

std::map<std::string, std::string> task_environment(
    const services::JobRow& job, const services::TaskRow& task,
    const std::vector<services::TaskRow>& tasks,
    const std::map<std::string, std::string>& addresses) {
    const std::vector<std::string> nodes = nodes_in_order(tasks);
    std::int32_t local_rank = 0;
    std::int32_t local_size = 0;
    std::string master = address_of(addresses, task.node);
    for (const services::TaskRow& other : tasks) {
        local_rank += other.node == task.node && other.rank < task.rank ? 1 : 0;
        local_size += other.node == task.node ? 1 : 0;
        if (other.rank == 0 && !other.node.empty()) {
            master = address_of(addresses, other.node);
        }
    }
    const auto node_index = std::find(nodes.begin(), nodes.end(), task.node) - nodes.begin();
    const auto text = [](auto number) { return std::to_string(number); };
    std::map<std::string, std::string> env = job.spec.env;  // ours are on top of the job's own
    env["RANK"] = text(task.rank);
    env["WORLD_SIZE"] = text(tasks.size());
    env["LOCAL_RANK"] = text(local_rank);
    env["LOCAL_WORLD_SIZE"] = text(local_size);
    env["MASTER_ADDR"] = master;
    env["MASTER_PORT"] = text(kMasterPortFirst + job.id.value % kMasterPorts);
    env["CUDA_VISIBLE_DEVICES"] = slots_text(task.gpu_slots);
    env["SLURM_JOB_ID"] = text(job.id.value);
    env["SLURM_JOB_NAME"] = job.name;
    env["SLURM_JOB_USER"] = job.user;
    env["SLURM_JOB_PARTITION"] = job.pool;
    env["SLURM_PROCID"] = text(task.rank);
    env["SLURM_LOCALID"] = text(local_rank);
    env["SLURM_NTASKS"] = text(tasks.size());
    env["SLURM_NODEID"] = text(node_index);
    env["SLURM_NNODES"] = text(nodes.size());
    env["SLURM_JOB_NODELIST"] = host_list(nodes);
    env["SLURMD_NODENAME"] = task.node;
    env["SLURM_CPUS_PER_TASK"] = text(job.per_task.cpus);
    env["SLURM_RESTART_COUNT"] = text(job.restarts);
    if (job.array_parent != 0) {
        env["SLURM_ARRAY_JOB_ID"] = text(job.array_parent);
        env["SLURM_ARRAY_TASK_ID"] = text(job.array_index);
    }
    env["HOLDFAST_JOB"] = text(job.id.value);
    env["HOLDFAST_TASK"] = text(task.id.value);
    env["HOLDFAST_LEASE"] = text(task.lease.value);
    add_training(job, task, addresses, env);
    return env;
}

Result<v1::StartTask> start_task_for(store::ReadTx& tx, const services::LeaseRow& lease) {
    HOLD_TRY(const services::JobRow job, services::find_job(tx, lease.job));
    HOLD_TRY(const auto tasks, services::tasks_of(tx, lease.job));
    const auto found = std::find_if(tasks.begin(), tasks.end(),
                                    [&](const auto& task) { return task.id == lease.task; });
    if (found == tasks.end()) {
        return fail(Errc::not_found, "no task {} in job {}", lease.task.value, lease.job.value);
    }
    services::TaskRow task = *found;
    task.lease = lease.id;
    task.gpu_slots = lease.gpu_slots;
    std::map<std::string, std::string> addresses;
    for (const std::string& name : nodes_in_order(tasks)) {
        HOLD_TRY(const auto row, tx.query_one("SELECT address FROM node WHERE name = $1", name));
        addresses[name] = row ? row->text("address") : "";
    }
    v1::StartTask start;
    start.set_task(task.id.value);
    start.set_job(job.id.value);
    start.set_lease(lease.id.value);
    start.set_user(job.user);
    start.set_run(job.spec.run);
    for (auto& [name, value] : task_environment(job, task, tasks, addresses)) {
        (*start.mutable_env())[name] = value;
    }
    start.set_workdir(job.spec.workdir);
    start.mutable_gpu_slots()->Add(lease.gpu_slots.begin(), lease.gpu_slots.end());
    start.set_time_limit_s(job.spec.time_limit_s);
    start.set_training_worker(job.spec.training.has_value());
    if (job.spec.training) {
        HOLD_TRY(const services::LeaseRow held, services::check_lease(tx, lease.task, lease.id));
        start.set_secret(held.secret);
    }
    start.set_cpus(lease.resources.cpus);
    start.set_memory_bytes(lease.resources.memory_bytes);
    start.set_rank(task.rank);
    return start;
}

}  // namespace holdfast::server
