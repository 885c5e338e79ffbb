// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <holdfast.grpc.pb.h>

#include "core.hpp"

namespace holdfast::server {

class JobsService final : public v1::Jobs::Service {
  public:
    explicit JobsService(Core& core) : core_(core) {}

    grpc::Status Submit(grpc::ServerContext* context, const v1::SubmitRequest* request,
                        v1::SubmitResponse* response) override;
    grpc::Status Get(grpc::ServerContext* context, const v1::JobRef* request,
                     v1::Job* response) override;
    /// Without specs: a list of a thousand jobs must fit into one message.
    grpc::Status List(grpc::ServerContext* context, const v1::ListJobsRequest* request,
                      v1::ListJobsResponse* response) override;
    grpc::Status Cancel(grpc::ServerContext* context, const v1::CancelRequest* request,
                        v1::Job* response) override;
    grpc::Status Pause(grpc::ServerContext* context, const v1::JobRef* request,
                       v1::Job* response) override;
    grpc::Status Resume(grpc::ServerContext* context, const v1::JobRef* request,
                        v1::Job* response) override;
    grpc::Status Wait(grpc::ServerContext* context, const v1::WaitRequest* request,
                      v1::Job* response) override;
    grpc::Status Why(grpc::ServerContext* context, const v1::JobRef* request,
                     v1::WhyResponse* response) override;
    grpc::Status Logs(grpc::ServerContext* context, const v1::LogsRequest* request,
                      grpc::ServerWriter<v1::LogChunk>* writer) override;

  private:
    Result<> submit(const Caller& caller, const v1::SubmitRequest& request,
                    v1::SubmitResponse& response);
    Result<> change(const Caller& caller, Verb verb, std::int64_t id, v1::Job& response,
                    const std::function<Result<>(store::Tx&, JobId)>& act);

    Core& core_;
};

}  // namespace holdfast::server
