// SPDX-License-Identifier: Apache-2.0
// Wakes calls that wait for rows to change. A call listens to topics, reads the rows, and sleeps
// until a delta rings one of them: what rings between the reading and the sleeping is remembered.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include <holdfast/ids.hpp>

namespace holdfast::server {

class Bells {
  public:
    enum class Kind : std::uint8_t { job, task_output };
    using Topic = std::pair<Kind, std::int64_t>;

    static Topic of(JobId job) { return {Kind::job, job.value}; }

    static Topic output_of(TaskId task) { return {Kind::task_output, task.value}; }

    class Bell {
      public:
        /// Returns when a topic rang since the last return, or after `limit`. A caller whose client
        /// may go away passes a short limit and looks.
        void wait(std::chrono::microseconds limit) {
            std::unique_lock lock(mutex_);
            changed_.wait_for(lock, limit, [this] { return rung_; });
            rung_ = false;
        }

      private:
        friend class Bells;

        void ring() {
            {
                const std::lock_guard lock(mutex_);
                rung_ = true;
            }
            changed_.notify_one();
        }

        std::mutex mutex_;
        std::condition_variable changed_;
        bool rung_ = false;
    };

    /// Listens while it lives.
    class Listening {
      public:
        Listening(Bells& bells, std::vector<Topic> topics)
            : bells_(bells), topics_(std::move(topics)) {
            const std::lock_guard lock(bells_.mutex_);
            for (const Topic& topic : topics_) {
                bells_.listeners_[topic].insert(&bell_);
            }
            bells_.all_.insert(&bell_);
        }

        ~Listening() {
            const std::lock_guard lock(bells_.mutex_);
            for (const Topic& topic : topics_) {
                const auto found = bells_.listeners_.find(topic);
                if (found == bells_.listeners_.end()) {
                    continue;  // a topic named twice
                }
                found->second.erase(&bell_);
                if (found->second.empty()) {
                    bells_.listeners_.erase(found);
                }
            }
            bells_.all_.erase(&bell_);
        }

        Listening(const Listening&) = delete;
        Listening& operator=(const Listening&) = delete;

        void wait(std::chrono::microseconds limit) { bell_.wait(limit); }

      private:
        Bells& bells_;
        std::vector<Topic> topics_;
        Bell bell_;
    };

    void ring(const Topic& topic) {
        const std::lock_guard lock(mutex_);
        const auto found = listeners_.find(topic);
        if (found == listeners_.end()) {
            return;
        }
        for (Bell* bell : found->second) {
            bell->ring();
        }
    }

    void ring_all() {
        const std::lock_guard lock(mutex_);
        for (Bell* bell : all_) {
            bell->ring();
        }
    }

  private:
    std::mutex mutex_;
    std::map<Topic, std::set<Bell*>> listeners_;
    std::set<Bell*> all_;
};

}  // namespace holdfast::server
