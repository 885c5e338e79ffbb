// SPDX-License-Identifier: Apache-2.0
// Training.Attach: workers are known by their lease's secret, their deaths are rows at once, and
// the job goes on. The workers here speak the protocol without computing anything.
#include <algorithm>

#include "fixture.hpp"

namespace holdfast::server::testing {
namespace {

class FakeWorker {
  public:
    FakeWorker(v1::Training::Stub& training, const v1::StartTask& start, std::string secret = "")
        : conversation_([&](grpc::ClientContext* context) { return training.Attach(context); }) {
        const std::string& name = start.env().at("HOLDFAST_WORKER");
        pipeline_ = std::stoi(name.substr(0, name.find(':')));
        stage_ = std::stoi(name.substr(name.find(':') + 1));
        v1::WorkerMessage message;
        v1::WorkerHello& hello = *message.mutable_hello();
        hello.set_job(start.job());
        hello.set_task(start.task());
        hello.set_lease(start.lease());
        hello.set_secret(secret.empty() ? start.secret() : secret);
        hello.set_pipeline(pipeline_);
        hello.set_stage(stage_);
        hello.set_version(-1);
        hello.set_previous_version(-1);
        hello.set_data_address("127.0.0.1:1");
        hello.set_data_hash("h");
        hello.set_pid(1);
        conversation_.send(message);
    }

    std::optional<v1::CoordinatorMessage> next(
        const std::function<bool(const v1::CoordinatorMessage&)>& wanted) {
        return conversation_.next(wanted);
    }

    /// Follows plan → Ready.
    v1::EpochPlan ready() {
        const auto message = next([](const auto& candidate) { return candidate.has_plan(); });
        if (!message) {
            ADD_FAILURE() << "no plan";
            return {};
        }
        v1::WorkerMessage answer;
        answer.mutable_ready()->set_epoch(message->plan().epoch());
        answer.mutable_ready()->set_version(message->plan().version());
        conversation_.send(answer);
        return message->plan();
    }

    bool go() {
        return next([](const auto& candidate) { return candidate.has_go(); }).has_value();
    }

    void commit(std::int64_t epoch, std::int64_t step, int pipelines) {
        v1::WorkerMessage message;
        v1::StepCommit& commit = *message.mutable_commit();
        commit.set_epoch(epoch);
        commit.set_step(step);
        commit.set_step_us(1000);
        commit.set_parameter_hash(static_cast<std::uint64_t>(step) + 1);
        for (int pipeline = 0; pipeline < pipelines; ++pipeline) {
            v1::MicrobatchLoss* loss = commit.add_losses();
            loss->set_pipeline(pipeline);
            loss->set_loss(2.0);
        }
        conversation_.send(message);
    }

    bool acknowledged(std::int64_t step) {
        return next([&](const auto& candidate) {
                   return candidate.has_commit_ack() && candidate.commit_ack().step() >= step;
               })
            .has_value();
    }

    void stopped(std::int64_t epoch, std::int64_t version) {
        v1::WorkerMessage message;
        message.mutable_stopped()->set_epoch(epoch);
        message.mutable_stopped()->set_version(version);
        message.mutable_stopped()->set_previous_version(version - 1);
        conversation_.send(message);
    }

    void hang_up() { conversation_.hang_up(); }

    grpc::Status wait_for_end() { return conversation_.wait_for_end(); }

    [[nodiscard]] const grpc::ClientContext& context() const { return conversation_.context(); }

  private:
    int pipeline_ = 0;
    int stage_ = 0;
    Conversation<v1::WorkerMessage, v1::CoordinatorMessage> conversation_;
};

class TrainingTest : public ServerTest {
  protected:
    Options options() const override {
        Options options = ServerTest::options();
        options.worker_suspect_ms = 60'000;  // these workers send no heartbeats
        options.worker_dead_ms = 120'000;
        return options;
    }

    static v1::JobSpec two_pipelines() {
        v1::JobSpec spec;
        spec.set_name("train");
        v1::TrainingSpec& training = *spec.mutable_training();
        training.set_pipelines(2);
        training.set_stages(1);
        training.set_microbatches(1);
        training.set_model("gpt-tiny");
        training.set_steps(3);
        training.set_exact(true);
        training.set_data("/usr/share/common-licenses/GPL-3");
        training.set_backend("reference");
        return spec;
    }

    std::vector<std::string> events(std::int64_t job) {
        std::vector<std::string> kinds;
        const auto rows = sql("SELECT kind FROM training_event WHERE job = " + std::to_string(job) +
                              " ORDER BY seq");
        for (const auto& row : rows.rows()) {
            kinds.push_back(row.values(0).text());
        }
        return kinds;
    }
};

TEST_F(TrainingTest, ADeathIsARowAndTheJobGoesOnWithoutARestart) {
    FakeAgent one(*agents_, {.name = "n1", .cpus = 1, .gpus = 1});
    FakeAgent two(*agents_, {.name = "n2", .instance = "i2", .cpus = 1, .gpus = 1});
    ASSERT_TRUE(one.registered());
    ASSERT_TRUE(two.registered());
    const std::int64_t id = submit(two_pipelines());
    const auto start_one = one.next_start();
    const auto start_two = two.next_start();
    ASSERT_TRUE(start_one && start_two);
    EXPECT_TRUE(start_one->training_worker());
    EXPECT_FALSE(start_one->secret().empty());
    EXPECT_NE(start_one->secret(), start_two->secret());
    EXPECT_EQ(start_one->env().at("HOLDFAST_DATA_HOST"), "127.0.0.1");
    EXPECT_NE(start_one->env().at("HOLDFAST_TRAINING").find("\"steps\":3"), std::string::npos);
    ASSERT_TRUE(one.report(*start_one, "running"));
    ASSERT_TRUE(two.report(*start_two, "running"));

    FakeWorker first(*training_, *start_one);
    FakeWorker second(*training_, *start_two);
    const v1::EpochPlan plan = first.ready();
    EXPECT_EQ(plan.epoch(), 1);
    EXPECT_EQ(plan.live_size(), 2);
    EXPECT_FALSE(plan.cluster_key().empty());
    second.ready();
    ASSERT_TRUE(first.go());
    ASSERT_TRUE(second.go());
    first.commit(1, 0, 2);
    second.commit(1, 0, 2);
    ASSERT_TRUE(first.acknowledged(0));
    EXPECT_EQ(job(id).step(), 1);
    EXPECT_EQ(job(id).loss(), 2.0);

    second.hang_up();  // as a killed process: its socket ends
    ASSERT_TRUE(first.next([](const auto& message) { return message.has_abort(); }));
    // The death was stored before the others were told.
    EXPECT_EQ(count("SELECT count(*) FROM training_event WHERE kind = 'worker_dead'"), 1);
    first.stopped(1, 1);
    const v1::EpochPlan alone = first.ready();
    EXPECT_EQ(alone.epoch(), 2);
    EXPECT_EQ(alone.version(), 1);
    EXPECT_EQ(alone.live_size(), 1);
    ASSERT_TRUE(first.go());
    for (const std::int64_t step : {1, 2}) {
        first.commit(2, step, 2);
        ASSERT_TRUE(first.acknowledged(step));
    }
    ASSERT_TRUE(first.next([](const auto& message) { return message.has_finish(); }));
    first.hang_up();
    ASSERT_TRUE(one.report(*start_one, "completed"));
    const v1::Job done = job_in(id, "completed");
    EXPECT_EQ(done.restarts(), 0);
    EXPECT_EQ(done.step(), 3);
    EXPECT_EQ(done.epoch(), 2);
    const auto kinds = events(id);
    EXPECT_EQ(std::count(kinds.begin(), kinds.end(), "worker_dead"), 1);
    EXPECT_EQ(std::count(kinds.begin(), kinds.end(), "finished"), 1);
    EXPECT_EQ(count("SELECT count(*) FROM training_step"), 3);
}

TEST_F(TrainingTest, WorkersTrainOnWhileTheServerIsAway) {
    auto one = std::make_unique<FakeAgent>(*agents_, FakeAgent::Setup{.cpus = 2, .gpus = 2});
    ASSERT_TRUE(one->registered());
    const std::int64_t id = submit(two_pipelines());
    const auto start_a = one->next_start();
    const auto start_b = one->next_start();
    ASSERT_TRUE(start_a && start_b);
    ASSERT_TRUE(one->report(*start_a, "running"));
    ASSERT_TRUE(one->report(*start_b, "running"));
    {
        FakeWorker a(*training_, *start_a);
        FakeWorker b(*training_, *start_b);
        a.ready();
        b.ready();
        ASSERT_TRUE(a.go());
        ASSERT_TRUE(b.go());
        a.commit(1, 0, 2);
        b.commit(1, 0, 2);
        ASSERT_TRUE(a.acknowledged(0));
        stop();
        const auto status = a.wait_for_end();
        EXPECT_EQ(code_of(status, a.context()), "unavailable");
    }
    start();
    FakeAgent again(*agents_, {.cpus = 2,
                               .gpus = 2,
                               .tasks = {FakeAgent::status_of(*start_a, "running"),
                                         FakeAgent::status_of(*start_b, "running")}});
    ASSERT_TRUE(again.registered());
    EXPECT_EQ(job(id).step(), 1);
    EXPECT_EQ(job(id).epoch(), 1);
    EXPECT_EQ(job(id).state(), "running");
}

TEST_F(TrainingTest, OnlyTheLeasesSecretAttaches) {
    FakeAgent agent(*agents_, {.cpus = 2, .gpus = 2});
    ASSERT_TRUE(agent.registered());
    submit(two_pipelines());
    const auto start = agent.next_start();
    ASSERT_TRUE(start);
    std::string wrong = start->secret();
    wrong.back() = wrong.back() == '0' ? '1' : '0';
    for (const std::string& secret : {wrong, wrong.substr(1), std::string("x")}) {
        FakeWorker worker(*training_, *start, secret);
        const auto status = worker.wait_for_end();
        EXPECT_EQ(code_of(status, worker.context()), "unauthenticated");
    }
    v1::StartTask stale = *start;
    stale.set_lease(start->lease() + 1000);
    FakeWorker worker(*training_, stale);
    EXPECT_TRUE(worker.next([](const auto& message) { return message.has_fenced(); }));
    const auto status = worker.wait_for_end();
    EXPECT_EQ(code_of(status, worker.context()), "stale_lease");
    v1::StartTask other = *start;
    (*other.mutable_env())["HOLDFAST_WORKER"] =
        start->env().at("HOLDFAST_WORKER") == "0:0" ? "1:0" : "0:0";
    FakeWorker impostor(*training_, other);
    const auto refused = impostor.wait_for_end();
    EXPECT_EQ(code_of(refused, impostor.context()), "unauthenticated");
}

TEST_F(TrainingTest, CancellingTellsTheWorkers) {
    FakeAgent agent(*agents_, {.cpus = 2, .gpus = 2});
    ASSERT_TRUE(agent.registered());
    const std::int64_t id = submit(two_pipelines());
    const auto start = agent.next_start();
    ASSERT_TRUE(start);
    ASSERT_TRUE(agent.report(*start, "running"));
    FakeWorker worker(*training_, *start);
    v1::CancelRequest request;
    request.set_job(id);
    v1::Job answer;
    Call call;
    ASSERT_TRUE(jobs_->Cancel(&call.context, request, &answer).ok());
    worker.wait_for_end();
    ASSERT_TRUE(agent.next_stop());
    EXPECT_EQ(job(id).state(), "cancelled");
}

}  // namespace
}  // namespace holdfast::server::testing
