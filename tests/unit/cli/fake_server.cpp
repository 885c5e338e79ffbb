// SPDX-License-Identifier: Apache-2.0
#include "fake_server.hpp"

#include <unistd.h>

namespace holdfast::cli::testing {
namespace {

grpc::Status no_job(grpc::ServerContext* context, std::int64_t job) {
    return rpc::to_status(make_error(Errc::not_found, "there is no job {}", job)
                              .at("job")
                              .advise("see `hold jobs --all`"),
                          context);
}

void plain_spec(v1::JobSpec& spec, const std::string& name, std::int32_t tasks) {
    spec.set_name(name);
    spec.set_run("sleep 60");
    spec.set_tasks(tasks);
    spec.set_pool("default");
    spec.mutable_per_task()->set_cpus(1);
}

std::vector<v1::Job> all_jobs() {
    return {running_job(), pending_job(), training_job(), element_job()};
}

bool ended(const v1::Job& job) {
    return job.end_us() != 0;
}

}  // namespace

v1::Job running_job() {
    v1::Job job;
    job.set_id(42);
    job.set_name("train");
    job.set_user("ada");
    job.set_pool("default");
    job.set_state("running");
    job.set_priority(100);
    job.set_submit_us(kNowUs - 3'600'000'000);
    job.set_start_us(kNowUs - 65'000'000);
    plain_spec(*job.mutable_spec(), "train", 3);
    job.mutable_spec()->set_tasks_per_node(1);
    (*job.mutable_spec()->mutable_env())["B"] = "2";
    (*job.mutable_spec()->mutable_env())["A"] = "1";
    for (const char* node : {"n01", "n02", "n03"}) {
        job.add_node_names(node);
    }
    return job;
}

v1::Job pending_job() {
    v1::Job job;
    job.set_id(43);
    job.set_name("evil\x1b[31m,\"name\"");
    job.set_user("bob");
    job.set_pool("h100");
    job.set_state("pending");
    job.set_reason("wants 8 gpus on one node; the largest node has 4");
    job.set_submit_us(kNowUs - 1'000'000);
    plain_spec(*job.mutable_spec(), job.name(), 1);
    return job;
}

v1::Job training_job() {
    v1::Job job;
    job.set_id(45);
    job.set_name("gpt");
    job.set_user("ada");
    job.set_pool("default");
    job.set_state("completed");
    job.set_submit_us(kNowUs - 300'000'000);
    job.set_start_us(kNowUs - 200'000'000);
    job.set_end_us(kNowUs - 100'000'000);
    job.set_step(100);
    job.set_loss(2.5);
    job.set_epoch(3);
    plain_spec(*job.mutable_spec(), "gpt", 6);
    job.mutable_spec()->clear_run();
    v1::TrainingSpec& training = *job.mutable_spec()->mutable_training();
    training.set_pipelines(2);
    training.set_stages(3);
    training.set_microbatches(6);
    training.set_model("gpt-small");
    training.set_steps(100);
    training.set_exact(true);
    training.set_data("/usr/share/common-licenses/GPL-3");
    training.set_seed(1);
    training.set_backend("torch");
    return job;
}

v1::Job element_job() {
    v1::Job job;
    job.set_id(48);
    job.set_name("sweep");
    job.set_user("ada");
    job.set_pool("default");
    job.set_state("failed");
    job.set_reason("task 0 exited with 3");
    job.set_array_parent(44);
    job.set_array_index(3);
    job.set_exit_code(3);
    job.set_submit_us(kNowUs - 300'000'000);
    job.set_start_us(kNowUs - 200'000'000);
    job.set_end_us(kNowUs - 100'000'000);
    plain_spec(*job.mutable_spec(), "sweep", 1);
    v1::Task& task = *job.add_tasks();
    task.set_id(60);
    task.set_job(48);
    task.set_state("failed");
    task.set_exit_code(3);
    task.set_node("n01");
    task.set_lease(7);
    task.add_gpu_slots(1);
    return job;
}

// ------------------------------------------------------------------------------------------- jobs

grpc::Status FakeJobs::Submit(grpc::ServerContext*, const v1::SubmitRequest* request,
                              v1::SubmitResponse* response) {
    keys.push_back(request->idempotency_key());
    if (refuse_submits > 0) {
        --refuse_submits;
        return {grpc::StatusCode::UNAVAILABLE, "starting"};
    }
    submitted = *request;
    *response = answer;
    return grpc::Status::OK;
}

grpc::Status FakeJobs::Get(grpc::ServerContext* context, const v1::JobRef* ref,
                           v1::Job* answer_job) {
    if (ended.id() != 0 && ref->job() == ended.id()) {
        *answer_job = ended;
        return grpc::Status::OK;
    }
    for (const v1::Job& job : all_jobs()) {
        if (job.id() == ref->job()) {
            *answer_job = job;
            return grpc::Status::OK;
        }
    }
    return no_job(context, ref->job());
}

grpc::Status FakeJobs::List(grpc::ServerContext*, const v1::ListJobsRequest* request,
                            v1::ListJobsResponse* response) {
    for (const v1::Job& job : all_jobs()) {
        const auto& states = request->states();
        const bool state =
            states.empty() || std::find(states.begin(), states.end(), job.state()) != states.end();
        if (state && (request->ended() || !testing::ended(job)) &&
            (request->user().empty() || request->user() == job.user()) &&
            (request->array() == 0 || request->array() == job.array_parent())) {
            v1::Job& row = *response->add_jobs();
            row = job;
            row.clear_tasks();
            row.clear_spec();  // as the server: the shape only
            row.mutable_spec()->set_tasks(job.spec().tasks());
            row.mutable_spec()->set_tasks_per_node(job.spec().tasks_per_node());
        }
    }
    return grpc::Status::OK;
}

grpc::Status FakeJobs::Cancel(grpc::ServerContext* context, const v1::CancelRequest* request,
                              v1::Job* job) {
    cancel_reason = request->reason();
    v1::JobRef ref;
    ref.set_job(request->job());
    const grpc::Status status = Get(context, &ref, job);
    job->set_state("cancelled");
    return status;
}

grpc::Status FakeJobs::Pause(grpc::ServerContext* context, const v1::JobRef* ref, v1::Job* job) {
    if (ref->job() == 42) {
        return rpc::to_status(make_error(Errc::bad_state, "job 42 is running"), context);
    }
    const grpc::Status status = Get(context, ref, job);
    job->set_state("paused");
    return status;
}

grpc::Status FakeJobs::Resume(grpc::ServerContext* context, const v1::JobRef* ref, v1::Job* job) {
    return Get(context, ref, job);
}

grpc::Status FakeJobs::Wait(grpc::ServerContext* context, const v1::WaitRequest* request,
                            v1::Job* job) {
    if (request->job() == 42) {
        return {grpc::StatusCode::DEADLINE_EXCEEDED, "still running"};
    }
    v1::JobRef ref;
    ref.set_job(request->job());
    const grpc::Status status = Get(context, &ref, job);
    if (request->job() == 43) {
        job->set_state(end_state);
    }
    return status;
}

grpc::Status FakeJobs::Why(grpc::ServerContext* context, const v1::JobRef* ref,
                           v1::WhyResponse* why) {
    if (ref->job() != 43) {
        return no_job(context, ref->job());
    }
    why->set_job(43);
    why->set_state("pending");
    why->set_summary("wants 8 gpus on one node; the largest node has 4");
    why->add_details("gpus: wants 8, n01 has 4, n02 has 2");
    why->add_warnings("workers of one stage share a node");
    why->add_fixes("ask for 4 gpus");
    return grpc::Status::OK;
}

grpc::Status FakeJobs::Logs(grpc::ServerContext*, const v1::LogsRequest* request,
                            grpc::ServerWriter<v1::LogChunk>* writer) {
    logs_request = *request;
    const auto send = [writer](std::int32_t rank, const char* stream, std::int64_t offset,
                               const char* text, std::int64_t at_us) {
        v1::LogChunk chunk;
        chunk.set_task(60 + rank);
        chunk.set_rank(rank);
        chunk.set_stream(stream);
        chunk.set_offset(offset);
        chunk.set_text(text);
        chunk.set_at_us(at_us);
        writer->Write(chunk);
    };
    send(0, "stdout", 0, "one\ntw", 1);
    if (breaks > 0) {
        --breaks;
        return {grpc::StatusCode::UNAVAILABLE, "gone"};
    }
    send(1, "stderr", 0, "oh\n", 2);
    send(0, "stdout", 6, "o\n", 3);
    send(0, "stdout", 0, "again", 4);  // the task began anew
    return grpc::Status::OK;
}

// ------------------------------------------------------------------------------------------ nodes

namespace {

v1::Node node_of(const std::string& name, const std::string& state) {
    v1::Node node;
    node.set_id(name == "n01" ? 1 : 2);
    node.set_name(name);
    node.set_pool("default");
    node.set_state(state);
    node.set_reason(state == "up" ? "" : "new fan");
    node.mutable_capacity()->set_cpus(8);
    node.mutable_capacity()->set_memory_bytes(std::int64_t{64} << 30);
    node.mutable_capacity()->set_gpus(4);
    node.mutable_capacity()->set_gpu_type("h100");
    node.mutable_free()->set_cpus(6);
    node.mutable_free()->set_memory_bytes(std::int64_t{32} << 30);
    node.mutable_free()->set_gpus(1);
    node.mutable_free()->set_gpu_type("h100");
    node.set_address("10.0.0.1");
    node.set_version("0.1.0");
    node.set_running_tasks(2);
    node.set_epoch(5);
    node.set_last_heartbeat_us(kNowUs - 1'000'000);
    return node;
}

}  // namespace

grpc::Status FakeNodes::List(grpc::ServerContext*, const v1::Empty*,
                             v1::ListNodesResponse* response) {
    *response->add_nodes() = node_of("n01", "up");
    *response->add_nodes() = node_of("n02", "drained");
    return grpc::Status::OK;
}

grpc::Status FakeNodes::Add(grpc::ServerContext* context, const v1::NodeRequest* request,
                            v1::AddNodeResponse* response) {
    requests.push_back(*request);
    if (request->name() == "n01") {
        return rpc::to_status(make_error(Errc::conflict, "node n01 exists"), context);
    }
    response->set_name(request->name());
    response->set_enrolment_token("hf_secret");
    return grpc::Status::OK;
}

grpc::Status FakeNodes::Remove(grpc::ServerContext*, const v1::NodeRequest* request, v1::Empty*) {
    requests.push_back(*request);
    return grpc::Status::OK;
}

grpc::Status FakeNodes::Drain(grpc::ServerContext*, const v1::NodeRequest* request,
                              v1::Node* node) {
    requests.push_back(*request);
    *node = node_of(request->name(), "draining");
    return grpc::Status::OK;
}

grpc::Status FakeNodes::Undrain(grpc::ServerContext*, const v1::NodeRequest* request,
                                v1::Node* node) {
    *node = node_of(request->name(), "up");
    return grpc::Status::OK;
}

grpc::Status FakeNodes::Cordon(grpc::ServerContext* context, const v1::NodeRequest*, v1::Node*) {
    return rpc::to_status(make_error(Errc::denied, "only operators may cordon"), context);
}

// -------------------------------------------------------------------------------- pools and tokens

grpc::Status FakePools::Create(grpc::ServerContext*, const v1::Pool* pool, v1::Pool* answer) {
    *answer = *pool;
    return grpc::Status::OK;
}

grpc::Status FakePools::Delete(grpc::ServerContext*, const v1::Pool*, v1::Empty*) {
    return grpc::Status::OK;
}

grpc::Status FakePools::List(grpc::ServerContext*, const v1::Empty*,
                             v1::ListPoolsResponse* response) {
    v1::Pool& pool = *response->add_pools();
    pool.set_name("h100");
    pool.set_description("the big ones");
    pool.set_nodes(2);
    return grpc::Status::OK;
}

grpc::Status FakeTokens::Create(grpc::ServerContext*, const v1::Token* token, v1::Token* answer) {
    *answer = *token;
    answer->set_id(7);
    answer->set_created_us(kNowUs);
    answer->set_secret("hf_0123");
    return grpc::Status::OK;
}

grpc::Status FakeTokens::List(grpc::ServerContext*, const v1::Empty*,
                              v1::ListTokensResponse* response) {
    v1::Token& token = *response->add_tokens();
    token.set_id(7);
    token.set_user("ada");
    token.set_role("user");
    token.set_created_us(kNowUs);
    return grpc::Status::OK;
}

grpc::Status FakeTokens::Revoke(grpc::ServerContext* context, const v1::Token* token, v1::Empty*) {
    return token->id() == 7
               ? grpc::Status::OK
               : rpc::to_status(make_error(Errc::not_found, "no token {}", token->id()), context);
}

// ----------------------------------------------------------------------------------------- system

grpc::Status FakeSystem::Info(grpc::ServerContext*, const v1::Empty*, v1::ServerInfo* info) {
    info->set_version("0.1.0");
    info->set_started_us(kNowUs);
    info->set_pid(99);
    info->set_data_dir("/d");
    info->set_schema_version(1);
    info->set_user("ada");
    info->set_role("user");
    return grpc::Status::OK;
}

grpc::Status FakeSystem::Sql(grpc::ServerContext* context, const v1::SqlRequest* request,
                             v1::SqlResponse* response) {
    sql = *request;
    if (request->sql() == "DROP TABLE job") {
        return rpc::to_status(make_error(Errc::denied, "only SELECT is allowed").at("1:1"),
                              context);
    }
    for (const char* column : {"id", "x", "x"}) {
        response->add_columns(column);
    }
    v1::SqlRow& row = *response->add_rows();
    row.add_values()->set_integer(9'007'199'254'740'993);
    row.add_values()->set_text("a,\"b\"\n");
    row.add_values()->set_real(0.5);
    v1::SqlRow& second = *response->add_rows();
    second.add_values()->set_integer(-1);
    second.add_values()->set_null(true);
    second.add_values()->set_blob(std::string("\x00\xff", 2));
    response->set_truncated(true);
    response->set_elapsed_us(12);
    return grpc::Status::OK;
}

grpc::Status FakeSystem::History(grpc::ServerContext*, const v1::HistoryRequest* request,
                                 v1::HistoryResponse* response) {
    history = *request;
    v1::Change& insert = *response->add_changes();
    insert.set_seq(1);
    insert.set_txn(1);
    insert.set_at_us(kNowUs);
    insert.set_who("ada");
    insert.set_cause("submit");
    insert.set_table("job");
    insert.set_key("42");
    insert.set_op("insert");
    insert.set_after(R"({"id":42,"state":"pending"})");
    v1::Change& update = *response->add_changes();
    update = insert;
    update.set_seq(2);
    update.set_txn(2);
    update.set_who("server");
    update.set_cause("grant_gang");
    update.set_op("update");
    update.set_before(R"({"id":42,"state":"pending","node":""})");
    update.set_after(R"({"id":42,"state":"running","node":"n01"})");
    return grpc::Status::OK;
}

// ----------------------------------------------------------------------------------------- server

FakeServer::FakeServer() {
    std::string name = (std::filesystem::temp_directory_path() / "holdcli.XXXXXX").string();
    HOLD_CHECK(mkdtemp(name.data()) != nullptr, "a temporary folder can be made");
    folder = name;
    jobs.answer.set_job(42);
    grpc::ServerBuilder builder;
    builder.AddListeningPort(endpoint(), grpc::InsecureServerCredentials());
    builder.RegisterService(&jobs);
    builder.RegisterService(&nodes);
    builder.RegisterService(&pools);
    builder.RegisterService(&tokens);
    builder.RegisterService(&system);
    server_ = builder.BuildAndStart();
    HOLD_CHECK(server_ != nullptr, "a unix socket can be listened on");
    setenv("HOLDFAST_SERVER", endpoint().c_str(), 1);
}

FakeServer::~FakeServer() {
    server_->Shutdown();
    std::error_code error;
    std::filesystem::remove_all(folder, error);
    unsetenv("HOLDFAST_SERVER");
}

std::string FakeServer::endpoint() const {
    return "unix:" + (folder / "s").string();
}

Ran hold(const std::vector<std::string>& arguments, const std::string& input) {
    TestClock clock;
    TestRandom random;
    Env env{clock, random, real_env().files, real_env().network};
    StringStream out;
    StringStream err;
    Ran ran;
    Surroundings around{
        env, out, err, [&](std::size_t) -> Result<std::string> { return input; },
        [&](const std::string& path, const std::vector<std::string>& words) -> Error {
            ran.program = path;
            ran.arguments = words;
            return make_error(Errc::not_found, "start {}", path);
        }};
    ran.status = run_hold(arguments, around);
    ran.out = out.text();
    ran.err = err.text();
    return ran;
}

}  // namespace holdfast::cli::testing
