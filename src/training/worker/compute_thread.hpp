// SPDX-License-Identifier: Apache-2.0
// The thread that does the numbers: one task at a time, results to the mailbox.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "compute.hpp"
#include "mailbox.hpp"

namespace holdfast::training {

class ComputeThread {
  public:
    ComputeThread(StageRunner runner, Mailbox& mailbox)
        : runner_(std::move(runner)), mailbox_(mailbox), thread_([this] { run(); }) {}

    ~ComputeThread() {
        {
            const std::lock_guard lock(mutex_);
            stop_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }

    ComputeThread(const ComputeThread&) = delete;
    ComputeThread& operator=(const ComputeThread&) = delete;

    /// Pre: the last task's result is out.
    void start(ComputeTask task) {
        {
            const std::lock_guard lock(mutex_);
            task_ = std::move(task);
            busy_ = true;
        }
        changed_.notify_all();
    }

    /// A task is waiting or in progress. Threads: any.
    bool is_busy() {
        const std::lock_guard lock(mutex_);
        return busy_;
    }

  private:
    void run() {
        std::unique_lock lock(mutex_);
        while (true) {
            changed_.wait(lock, [&] { return stop_ || task_; });
            if (stop_) {
                return;
            }
            const ComputeTask task = *std::exchange(task_, std::nullopt);
            lock.unlock();
            ComputeResult result = runner_.run(task);
            lock.lock();
            busy_ = false;
            lock.unlock();
            mailbox_.post(Computed{std::move(result)});
            lock.lock();
        }
    }

    StageRunner runner_;
    Mailbox& mailbox_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::optional<ComputeTask> task_;
    bool busy_ = false;
    bool stop_ = false;
    std::thread thread_;  // last: it uses all of the above
};

}  // namespace holdfast::training
