// SPDX-License-Identifier: Apache-2.0
/// Hands committed deltas to subscribers, one call's deltas after another.
///
/// Threaded: one publisher thread, so that a handler may call the store. Inline: in the caller's
/// thread, outermost call first, so that deltas a handler causes come after those it is handling.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <holdfast/store.hpp>

namespace holdfast::store {

class Publisher : public std::enable_shared_from_this<Publisher> {
  public:
    enum class Mode : std::uint8_t { threaded, inline_calls };
    Publisher(Mode mode, std::size_t pending_max);
    ~Publisher();
    Publisher(const Publisher&) = delete;
    Publisher& operator=(const Publisher&) = delete;

    [[nodiscard]] Subscription subscribe(std::set<std::string> tables, DeltaHandler handler);
    /// In commit order, by the writer.
    void push(std::vector<Delta> deltas);
    /// Inline mode: runs the handlers, unless one is running further up the stack.
    void deliver_inline();
    /// Blocks the writer while too many deltas wait, unless a handler itself waits for the writer.
    void wait_for_room();
    void wait_idle();
    /// Delivers what waits, then ends the thread.
    void stop();
    [[nodiscard]] bool is_publisher_thread() const;

    /// Around a store call made by a handler.
    class HandlerCall {
      public:
        explicit HandlerCall(Publisher& publisher);
        ~HandlerCall();
        HandlerCall(const HandlerCall&) = delete;
        HandlerCall& operator=(const HandlerCall&) = delete;

      private:
        Publisher* publisher_ = nullptr;
    };

  private:
    struct Subscriber {
        std::recursive_mutex mutex;  // a handler may end its own subscription
        std::set<std::string> tables;
        DeltaHandler handler;
    };

    struct Batch {
        std::vector<Delta> deltas;
        std::int64_t last_subscriber = 0;  ///< who subscribed later gets later deltas only
    };

    void work();
    void deliver(const Batch& batch);
    void cancel(std::int64_t id);

    Mode mode_;
    std::size_t pending_max_;
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Batch> queue_;
    std::size_t pending_ = 0;  ///< deltas in queue_ and in delivery
    int handler_calls_ = 0;
    bool is_stopping_ = false;
    bool is_delivering_ = false;
    std::int64_t last_id_ = 0;
    std::map<std::int64_t, std::shared_ptr<Subscriber>> subscribers_;
    std::thread thread_;
};

}  // namespace holdfast::store
