// SPDX-License-Identifier: Apache-2.0
// Events from other threads for the one that runs the worker's state machine.
#pragma once

#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "worker_core.hpp"

namespace holdfast::training {

class Mailbox {
  public:
    /// `wake` makes the reader look; called without the lock.
    explicit Mailbox(std::function<void()> wake) : wake_(std::move(wake)) {}

    void post(WorkerEvent event) {
        {
            const std::lock_guard lock(mutex_);
            events_.push_back(std::move(event));
        }
        wake_();
    }

    std::vector<WorkerEvent> take() {
        const std::lock_guard lock(mutex_);
        return std::exchange(events_, {});
    }

  private:
    std::mutex mutex_;
    std::vector<WorkerEvent> events_;
    const std::function<void()> wake_;
};

}  // namespace holdfast::training
