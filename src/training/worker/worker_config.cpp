// SPDX-License-Identifier: Apache-2.0
#include "worker_config.hpp"

#include <array>
#include <cerrno>
#include <charconv>

#include <google/protobuf/util/json_util.h>
#include <unistd.h>

#include <holdfast/training.hpp>
#include <holdfast/training_proto.hpp>

namespace holdfast::training {

namespace {

constexpr std::size_t kSecretBytesMax = 4096;

Result<std::string> needed(const VariableLookup& variable, const std::string& name) {
    std::optional<std::string> value = variable(name);
    if (!value || value->empty()) {
        return fail(
            make_error(Errc::invalid_argument, "start a training worker: {} is not set", name)
                .at(name)
                .advise("workers are started by `hold agent`, which sets it"));
    }
    return *std::move(value);
}

Result<std::int64_t> needed_number(const VariableLookup& variable, const std::string& name) {
    HOLD_TRY(const std::string text, needed(variable, name));
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || end != text.data() + text.size() || number < 0) {
        return fail(
            make_error(Errc::invalid_argument, "{} is `{}`: not a number", name, text).at(name));
    }
    return number;
}

Result<TrainingSpec> spec_from(const VariableLookup& variable) {
    const std::string name = "HOLDFAST_TRAINING";
    HOLD_TRY(const std::string text, needed(variable, name));
    v1::TrainingSpec wire;
    // Unknown fields are refused by name.
    const auto parsed = google::protobuf::util::JsonStringToMessage(text, &wire);
    if (!parsed.ok()) {
        return fail(make_error(Errc::invalid_argument, "{} is no training spec: {}", name,
                               std::string(parsed.message().data(), parsed.message().size()))
                        .at(name));
    }
    TrainingSpec spec = from_proto(wire);
    HOLD_TRY(make_plan(spec.shape(), {}));
    if (spec.steps < 1) {
        return fail(make_error(Errc::invalid_argument, "{} steps: need at least 1", spec.steps)
                        .at("training.steps"));
    }
    if (spec.backend != "torch" && spec.backend != "reference") {
        return fail(
            make_error(Errc::invalid_argument, "training backend `{}` is unknown", spec.backend)
                .at("training.backend")
                .advise("write torch or reference"));
    }
    return spec;
}

}  // namespace

Result<WorkerConfig> worker_config(const VariableLookup& variable) {
    WorkerConfig config;
    HOLD_TRY(config.server.address, needed(variable, "HOLDFAST_SERVER"));
    config.server.ca_file = variable("HOLDFAST_CA").value_or("");
    HOLD_TRY(const std::int64_t job, needed_number(variable, "HOLDFAST_JOB"));
    HOLD_TRY(const std::int64_t task, needed_number(variable, "HOLDFAST_TASK"));
    HOLD_TRY(const std::int64_t lease, needed_number(variable, "HOLDFAST_LEASE"));
    config.job = JobId(job);
    config.task = TaskId(task);
    config.lease = LeaseId(lease);
    HOLD_TRY(const std::string worker, needed(variable, "HOLDFAST_WORKER"));
    HOLD_TRY(config.self, parse_worker(worker));
    HOLD_TRY(config.spec, spec_from(variable));
    if (config.self.pipeline >= config.spec.pipelines || config.self.stage >= config.spec.stages) {
        return fail(make_error(Errc::invalid_argument, "worker {} is not in a job of {} × {}",
                               worker, config.spec.pipelines, config.spec.stages)
                        .at("HOLDFAST_WORKER"));
    }
    HOLD_TRY(config.data_host, needed(variable, "HOLDFAST_DATA_HOST"));
    HOLD_TRY(const std::int64_t fd, needed_number(variable, "HOLDFAST_SECRET_FD"));
    config.secret_fd = static_cast<int>(std::min<std::int64_t>(fd, 1 << 20));
    return config;
}

Result<Secret> read_secret(int fd) {
    std::string text;
    std::array<char, 1024> buffer{};
    while (text.size() <= kSecretBytesMax) {
        const ssize_t got = ::read(fd, buffer.data(), buffer.size());
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            break;
        }
        text.append(buffer.data(), static_cast<std::size_t>(got));
    }
    ::close(fd);
    while (!text.empty() && text.back() == '\n') {
        text.pop_back();
    }
    if (text.empty() || text.size() > kSecretBytesMax) {
        return fail(make_error(Errc::invalid_argument,
                               "read the lease's secret from file descriptor {}: "
                               "{} bytes, need 1 to {}",
                               fd, text.size(), kSecretBytesMax)
                        .at("HOLDFAST_SECRET_FD"));
    }
    return Secret(std::move(text));
}

}  // namespace holdfast::training
