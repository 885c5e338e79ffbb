// SPDX-License-Identifier: Apache-2.0
// hold-train: the training worker that agents start. Not for people; `hold submit` is.
#include <csignal>
#include <cstdio>
#include <string_view>

#include <sys/signalfd.h>

#include "nn/numeric_threads.hpp"
#include "worker_program.hpp"

namespace {

void print_usage(std::FILE* to) {
    std::fputs(
        "usage: hold-train [worker]\n"
        "\n"
        "Trains one stage of one pipeline of a job. Agents start it and set HOLDFAST_SERVER, "
        "HOLDFAST_CA,\n"
        "HOLDFAST_JOB, HOLDFAST_TASK, HOLDFAST_LEASE, HOLDFAST_WORKER, HOLDFAST_TRAINING, "
        "HOLDFAST_DATA_HOST and\n"
        "HOLDFAST_SECRET_FD. Exit status: 0 finished, 1 failed, 2 wrong start, 3 fenced, 143 "
        "terminated.\n",
        to);
}

}  // namespace

int main(int count, char** arguments) {
    using namespace holdfast;  // NOLINT(google-build-using-namespace): main of one program
    // Without a verb it is a worker: so the agents start it.
    const std::string_view verb = count == 1 ? "worker" : count == 2 ? arguments[1] : "";
    if (verb == "--help" || verb == "-h") {
        print_usage(stdout);
        return 0;
    }
    if (verb != "worker") {
        print_usage(stderr);
        return training::kExitBadConfig;
    }
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigprocmask(SIG_BLOCK, &signals, nullptr);  // before any thread: all inherit it
    const int signal_fd = signalfd(-1, &signals, SFD_CLOEXEC);
    std::signal(SIGPIPE, SIG_IGN);
    const auto config = training::worker_config(environment_variable);
    if (!config) {
        std::fprintf(stderr, "hold-train: %s\n", config.error().describe().c_str());
        return training::kExitBadConfig;
    }
    auto secret = training::read_secret(config->secret_fd);
    if (!secret) {
        std::fprintf(stderr, "hold-train: %s\n", secret.error().describe().c_str());
        return training::kExitBadConfig;
    }
    training::limit_numeric_threads();
    return training::run_worker(*config, std::move(*secret), signal_fd, real_env());
}
