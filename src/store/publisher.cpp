// SPDX-License-Identifier: Apache-2.0
#include "publisher.hpp"

#include <exception>
#include <utility>

#include <holdfast/log.hpp>

namespace holdfast::store {

Publisher::Publisher(Mode mode, std::size_t pending_max) : mode_(mode), pending_max_(pending_max) {
    if (mode_ == Mode::threaded) {
        thread_ = std::thread([this] { work(); });
    }
}

Publisher::~Publisher() {
    stop();
}

Subscription Publisher::subscribe(std::set<std::string> tables, DeltaHandler handler) {
    auto subscriber = std::make_shared<Subscriber>();
    subscriber->tables = std::move(tables);
    subscriber->handler = std::move(handler);
    const std::lock_guard lock(mutex_);
    const std::int64_t id = ++last_id_;
    subscribers_.emplace(id, std::move(subscriber));
    return Subscription([weak = weak_from_this(), id] {
        if (const auto publisher = weak.lock()) {
            publisher->cancel(id);
        }
    });
}

void Publisher::cancel(std::int64_t id) {
    std::shared_ptr<Subscriber> subscriber;
    {
        const std::lock_guard lock(mutex_);
        const auto found = subscribers_.find(id);
        if (found == subscribers_.end()) {
            return;
        }
        subscriber = found->second;
        subscribers_.erase(found);
    }
    const std::lock_guard running(subscriber->mutex);  // waits for a handler in another thread
    subscriber->handler = nullptr;
}

void Publisher::push(std::vector<Delta> deltas) {
    const std::lock_guard lock(mutex_);
    if (deltas.empty() || subscribers_.empty()) {
        return;
    }
    pending_ += deltas.size();
    queue_.push_back({std::move(deltas), last_id_});
    changed_.notify_all();
}

void Publisher::wait_for_room() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] {
        return mode_ == Mode::inline_calls || pending_ < pending_max_ || handler_calls_ > 0 ||
               is_stopping_;
    });
}

void Publisher::wait_idle() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return pending_ == 0 || mode_ == Mode::inline_calls; });
}

void Publisher::stop() {
    {
        const std::lock_guard lock(mutex_);
        is_stopping_ = true;
        changed_.notify_all();
    }
    if (thread_.joinable()) {
        thread_.join();
    }
}

bool Publisher::is_publisher_thread() const {
    return thread_.get_id() == std::this_thread::get_id();
}

void Publisher::work() {
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [this] { return !queue_.empty() || is_stopping_; });
        if (queue_.empty()) {
            return;
        }
        const Batch batch = std::move(queue_.front());
        queue_.pop_front();
        lock.unlock();
        deliver(batch);
        lock.lock();
        pending_ -= batch.deltas.size();
        changed_.notify_all();
    }
}

void Publisher::deliver_inline() {
    std::unique_lock lock(mutex_);
    if (is_delivering_) {
        return;
    }
    is_delivering_ = true;
    while (!queue_.empty()) {
        const Batch batch = std::move(queue_.front());
        queue_.pop_front();
        pending_ -= batch.deltas.size();
        lock.unlock();
        deliver(batch);
        lock.lock();
    }
    is_delivering_ = false;
}

void Publisher::deliver(const Batch& batch) {
    std::vector<std::shared_ptr<Subscriber>> subscribers;
    {
        const std::lock_guard lock(mutex_);
        for (const auto& [id, subscriber] : subscribers_) {
            if (id <= batch.last_subscriber) {
                subscribers.push_back(subscriber);
            }
        }
    }
    for (const auto& subscriber : subscribers) {
        std::vector<Delta> wanted;
        for (const Delta& delta : batch.deltas) {
            if (subscriber->tables.empty() || subscriber->tables.contains(delta.table)) {
                wanted.push_back(delta);
            }
        }
        const std::lock_guard running(subscriber->mutex);
        if (wanted.empty() || !subscriber->handler) {
            continue;
        }
        try {
            const DeltaHandler handler = subscriber->handler;  // may cancel itself while running
            handler(wanted);
        } catch (const std::exception& error) {
            HOLD_EVENT(error, "store_handler_threw", {"what", error.what()});
        }
    }
}

Publisher::HandlerCall::HandlerCall(Publisher& publisher) {
    if (publisher.is_publisher_thread()) {
        publisher_ = &publisher;
        const std::lock_guard lock(publisher.mutex_);
        ++publisher.handler_calls_;
        publisher.changed_.notify_all();
    }
}

Publisher::HandlerCall::~HandlerCall() {
    if (publisher_ != nullptr) {
        const std::lock_guard lock(publisher_->mutex_);
        --publisher_->handler_calls_;
    }
}

}  // namespace holdfast::store
