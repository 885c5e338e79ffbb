// SPDX-License-Identifier: Apache-2.0
// What every handler needs, and the way every call goes: authorize → handler → status.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include <grpcpp/grpcpp.h>

#include <holdfast/env.hpp>
#include <holdfast/metrics.hpp>
#include <holdfast/result.hpp>
#include <holdfast/rpc.hpp>
#include <holdfast/server.hpp>
#include <holdfast/store.hpp>

#include "access.hpp"
#include "bells.hpp"
#include "peers.hpp"

namespace holdfast::server {

class AgentHub;
class PlacementLoop;
class SqlRunner;
class TrainingHub;

struct Core {
    explicit Core(Options chosen);
    ~Core();  // server.cpp: where the parts are known
    Core(const Core&) = delete;
    Core& operator=(const Core&) = delete;

    Options options;
    Env& env;
    std::unique_ptr<store::Store> store;
    Peers peers;
    Bells bells;
    std::atomic<bool> stopping{false};
    std::int64_t started_us = 0;
    std::unique_ptr<SqlRunner> sql;
    std::unique_ptr<PlacementLoop> placement;
    std::unique_ptr<AgentHub> agents;
    std::unique_ptr<TrainingHub> training;
    /// Calls being served. gRPC waits for its handlers at shutdown; that the last of them is out of
    /// our code is known from here.
    std::atomic<int> calls{0};
    /// Calls that wait (Wait, Logs -f), by user: each holds a thread.
    std::mutex waiting_mutex;
    std::map<std::string, int> waiting;
    int waiting_in_all = 0;
    static constexpr int kWaitingMax = 1024;
    static constexpr int kWaitingPerUserMax = 256;
};

/// The one choke point: who calls (unix peer or bearer token), and may they call this.
/// Errors: unauthenticated, denied, unavailable while the server stops.
Result<Caller> authorize(Core& core, const grpc::ServerContext& context, Verb verb);

/// Counts and times one call; the status it ended with goes to the log when it is our fault.
class CallRecord {
  public:
    CallRecord(Core& core, Verb verb);
    ~CallRecord();
    CallRecord(const CallRecord&) = delete;
    CallRecord& operator=(const CallRecord&) = delete;
    grpc::Status finish(const Result<>& result, grpc::ServerContext* context);

  private:
    Core& core_;
    Verb verb_;
    std::int64_t begun_us_;
};

/// Every handler's body: `fn(const Caller&) -> Result<>`.
template <typename F>
grpc::Status serve(Core& core, grpc::ServerContext* context, Verb verb, F&& fn) {
    CallRecord record(core, verb);
    auto caller = authorize(core, *context, verb);
    if (!caller) {
        return record.finish(fail(caller.error()), context);
    }
    return record.finish(fn(*caller), context);
}

/// The store::CallInfo of a call made for this caller.
store::CallInfo call_info(const Caller& caller, Verb verb);

}  // namespace holdfast::server
