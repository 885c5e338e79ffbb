// SPDX-License-Identifier: Apache-2.0
#include "cluster.hpp"

#include <csignal>

#include <fcntl.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <holdfast/env.hpp>
#include <holdfast/training_proto.hpp>

namespace holdfast::training {

namespace {

constexpr const char* kSecret = "the lease's secret";
constexpr auto kPatience = std::chrono::seconds(180);

std::int64_t now_us() {
    return real_env().clock.steady_us();
}

}  // namespace

Cluster::Cluster(TrainingSpec spec, std::string folder)
    : spec_(std::move(spec)), folder_(std::move(folder)) {}

Cluster::~Cluster() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    if (ticks_.joinable()) {
        ticks_.join();
    }
    stop_server();
    for (auto& [pid, status] : children_) {
        if (status == -1) {
            ::kill(pid, SIGKILL);
            ::waitpid(pid, nullptr, 0);
        }
    }
}

CoordinatorOptions Cluster::options() {
    CoordinatorOptions options;
    options.key_seed = "a seed of the tests " + std::to_string(++lives_);
    return options;
}

void Cluster::start() {
    std::map<WorkerName, LeaseId> leases;
    for (std::int32_t d = 0; d < spec_.pipelines; ++d) {
        for (std::int32_t s = 0; s < spec_.stages; ++s) {
            leases[{d, s}] = LeaseId(++last_lease_);
            rows_.workers[{d, s}].lease = leases[{d, s}];
        }
    }
    start_server();
    const std::lock_guard lock(mutex_);
    for (const auto& [worker, lease] : leases) {
        spawn(worker, lease);
    }
    ticks_ = std::thread([this] { run_ticks(); });
}

void Cluster::start_server() {
    {
        const std::lock_guard lock(mutex_);
        coordinator_ = Coordinator::restore(spec_, rows_, options()).value();
    }
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + folder_ + "/socket", grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
}

void Cluster::stop_server() {
    {
        const std::lock_guard lock(mutex_);
        coordinator_.reset();
        for (auto& [id, stream] : streams_) {
            stream.context->TryCancel();
        }
    }
    if (server_) {
        server_->Shutdown(std::chrono::system_clock::now());
        server_.reset();
    }
}

grpc::Status Cluster::Attach(
    grpc::ServerContext* context,
    grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::WorkerMessage>* calls) {
    v1::WorkerMessage message;
    if (!calls->Read(&message) || !message.has_hello() || message.hello().secret() != kSecret) {
        return {grpc::StatusCode::UNAUTHENTICATED, "no secret"};
    }
    const auto hello = from_proto(message);
    if (!hello) {
        return {grpc::StatusCode::INVALID_ARGUMENT, hello.error().message};
    }
    StreamId id = 0;
    int life = 0;
    {
        const std::lock_guard lock(mutex_);
        if (!coordinator_) {
            return {grpc::StatusCode::UNAVAILABLE, "stopping"};
        }
        id = ++last_stream_;
        life = lives_;
        streams_[id] = {calls, context};
        apply(coordinator_->handle(Attached{id, std::get<WorkerHello>(*hello)}, now_us()));
    }
    while (calls->Read(&message)) {
        const auto report = from_proto(message);
        const std::lock_guard lock(mutex_);
        if (!report || !coordinator_ || life != lives_) {
            break;
        }
        apply(coordinator_->handle(Reported{id, *report}, now_us()));
    }
    const std::lock_guard lock(mutex_);
    streams_.erase(id);
    if (coordinator_ && life == lives_) {
        apply(coordinator_->handle(Closed{id}, now_us()));
    }
    return grpc::Status::OK;
}

void Cluster::apply(const CoordinatorEffects& effects) {
    for (const CoordinatorEffect& effect : effects) {
        std::visit([&](const auto& each) { store(each); }, effect);
    }
    for (const CoordinatorEffect& effect : effects) {
        if (const auto* send = std::get_if<SendCommand>(&effect)) {
            if (const auto found = streams_.find(send->stream); found != streams_.end()) {
                found->second.calls->Write(to_proto(send->command));
            }
        } else if (const auto* close = std::get_if<CloseStream>(&effect)) {
            if (const auto found = streams_.find(close->stream); found != streams_.end()) {
                found->second.context->TryCancel();
            }
        }
    }
    changed_.notify_all();
}

void Cluster::store(const WorkerDied& died) {
    record_.deaths.push_back(died);
    rows_.workers[died.worker] = {};
    rows_.interrupted = true;
    to_place_.insert(died.worker);
}

void Cluster::store(const EpochBegan& began) {
    rows_.epoch = began.epoch;
    rows_.interrupted = false;
    for (auto& [worker, row] : rows_.workers) {
        row.in_epoch = began.live.contains(worker);
    }
    ++record_.epochs;
    record_.redone += began.redone_iterations;
}

void Cluster::store(const StepCommitted& committed) {
    EXPECT_EQ(committed.step, rows_.committed_steps);
    rows_.committed_steps = committed.step + 1;
    record_.losses[committed.step] = committed.loss;
    record_.lost_losses += committed.has_loss ? 0 : 1;
    record_.last_hash = committed.parameter_hash;
}

void Cluster::store(const WorkerRejoined&) {
    ++record_.rejoined;
}

void Cluster::store(const JobFinished&) {
    record_.finished = true;
}

void Cluster::store(const JobFailed& failed) {
    record_.failure = failed.why;
}

void Cluster::place(WorkerName worker) {
    const LeaseId lease(++last_lease_);
    rows_.workers[worker] = {lease, false};
    apply(coordinator_->handle(LeaseGranted{worker, lease}, now_us()));
    spawn(worker, lease);
}

void Cluster::spawn(WorkerName worker, LeaseId lease) {
    std::string spec;
    ASSERT_TRUE(google::protobuf::util::MessageToJsonString(to_proto(spec_), &spec).ok());
    int secret[2] = {-1, -1};
    ASSERT_EQ(::pipe(secret), 0);
    ASSERT_EQ(::write(secret[1], kSecret, std::strlen(kSecret)),
              static_cast<ssize_t>(std::strlen(kSecret)));
    ::close(secret[1]);
    constexpr int kSecretFd = 3;
    std::vector<std::string> variables{
        "HOLDFAST_SERVER=unix:" + folder_ + "/socket",
        "HOLDFAST_JOB=1",
        "HOLDFAST_TASK=" + std::to_string(lease.value),
        "HOLDFAST_LEASE=" + std::to_string(lease.value),
        "HOLDFAST_WORKER=" + to_string(worker),
        "HOLDFAST_TRAINING=" + spec,
        "HOLDFAST_DATA_HOST=127.0.0.1",
        "HOLDFAST_SECRET_FD=" + std::to_string(kSecretFd),
        "OPENBLAS_NUM_THREADS=1",
    };
    if (const auto sanitizer = environment_variable("TSAN_OPTIONS")) {
        variables.push_back("TSAN_OPTIONS=" + *sanitizer);
    }
    std::vector<char*> environment;
    for (std::string& variable : variables) {
        environment.push_back(variable.data());
    }
    environment.push_back(nullptr);
    const std::string log = folder_ + "/" + std::to_string(lease.value) + ".log";
    std::string program = HOLDFAST_WORKER_PROGRAM;
    std::string verb = "worker";
    char* arguments[] = {program.data(), verb.data(), nullptr};
    const pid_t pid = ::fork();
    if (pid == 0) {
        const int out = ::open(log.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
        ::dup2(out, 1);
        ::dup2(out, 2);
        if (secret[0] != kSecretFd) {
            ::dup2(secret[0], kSecretFd);
        } else {
            ::fcntl(kSecretFd, F_SETFD, 0);
        }
        for (int fd = kSecretFd + 1; fd < 1024; ++fd) {
            ::close(fd);
        }
        ::execve(program.c_str(), arguments, environment.data());
        ::_exit(127);
    }
    ::close(secret[0]);
    ASSERT_GT(pid, 0);
    pids_[worker] = pid;
    children_[pid] = -1;
}

void Cluster::run_ticks() {
    while (true) {
        real_env().clock.sleep_us(50'000);
        const std::lock_guard lock(mutex_);
        if (stop_) {
            return;
        }
        for (auto& [pid, status] : children_) {
            int ended = 0;
            if (status == -1 && ::waitpid(pid, &ended, WNOHANG) == pid) {
                status = ended;
            }
        }
        if (coordinator_) {
            apply(coordinator_->tick(now_us()));
        }
        if (coordinator_ && returns_) {
            for (const WorkerName& worker : std::exchange(to_place_, {})) {
                place(worker);
            }
        }
        changed_.notify_all();
    }
}

template <typename Predicate>
bool Cluster::wait(Predicate predicate) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] {
        return predicate() || !record_.failure.empty();
    }) && record_.failure.empty();
}

bool Cluster::wait_for_step(std::int64_t step) {
    return wait([&] { return rows_.committed_steps > step; });
}

bool Cluster::wait_for_deaths(std::size_t deaths) {
    return wait([&] { return record_.deaths.size() >= deaths; });
}

bool Cluster::wait_for_rejoined(int rejoined) {
    return wait([&] { return record_.rejoined >= rejoined; });
}

bool Cluster::wait_finished() {
    return wait([&] { return record_.finished; });
}

int Cluster::exit_status(pid_t pid) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [&] { return children_[pid] != -1; });
    return children_[pid];
}

pid_t Cluster::pid(WorkerName worker) {
    const std::lock_guard lock(mutex_);
    return pids_.at(worker);
}

void Cluster::signal(WorkerName worker, int number) {
    ::kill(pid(worker), number);
}

void Cluster::allow_returns() {
    const std::lock_guard lock(mutex_);
    returns_ = true;
}

std::string Cluster::phase() {
    const std::lock_guard lock(mutex_);
    return coordinator_ ? coordinator_->phase() : "no server";
}

Cluster::Record Cluster::record() {
    const std::lock_guard lock(mutex_);
    return record_;
}

}  // namespace holdfast::training
