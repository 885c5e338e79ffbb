// SPDX-License-Identifier: Apache-2.0
// One worker alone, against peers and a coordinator that misbehave. Whole jobs are
// simulation_test.cpp's.
#include "worker_core.hpp"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fake_stage.hpp"

namespace holdfast::training {
namespace {

using testing::HasSubstr;

/// Worker 0:1 of 2 × 2, M = 1: the last stage, with peer 1:1 and neighbour 0:0.
class WorkerCoreTest : public testing::Test {
  protected:
    static WorkerOptions options() {
        WorkerOptions options;
        options.spec.pipelines = 2;
        options.spec.stages = 2;
        options.spec.microbatches = 1;
        options.spec.steps = 5;
        options.self = {0, 1};
        options.lease = LeaseId(3);
        options.commits_max = 2;
        return options;
    }

    void give(WorkerEvent event) {
        for (WorkerAction& action : core_.handle(std::move(event), now_)) {
            if (auto* compute = std::get_if<StartCompute>(&action)) {
                computing_.push_back(runner_.run(compute->task));
            } else {
                actions_.push_back(std::move(action));
            }
        }
    }

    void compute_all() {
        while (!computing_.empty()) {
            ComputeResult result = std::move(computing_.front());
            computing_.erase(computing_.begin());
            give(Computed{std::move(result)});
        }
    }

    void command(CoordinatorCommand command) { give(CommandReceived{std::move(command)}); }

    static EpochPlan plan(std::int64_t epoch, std::int64_t version) {
        EpochPlan plan;
        plan.epoch = epoch;
        plan.spec = options().spec;
        plan.version = version;
        plan.cluster_key = std::string(32, 'k');
        plan.live = {{{0, 0}, "a"}, {{0, 1}, "b"}, {{1, 0}, "c"}, {{1, 1}, "d"}};
        return plan;
    }

    void begin() {
        give(ControlAttached{});
        command(plan(1, 0));
        give(PeerUp{1, {0, 0}});
        give(PeerUp{1, {1, 1}});
        compute_all();
        command(Go{1});
        actions_.clear();
    }

    static Frame activation(std::int64_t iteration) {
        Frame frame;
        frame.type = FrameType::activation;
        frame.epoch = 1;
        frame.iteration = iteration;
        frame.source = {0, 0};
        frame.target = {0, 1};
        frame.op_stage = 1;
        frame.payload.resize(8);
        return frame;
    }

    /// The peer's sums: its own microbatch counted once.
    static Frame sums(std::int64_t iteration) {
        Frame frame;
        frame.type = FrameType::reduce;
        frame.epoch = 1;
        frame.iteration = iteration;
        frame.source = {1, 1};
        frame.target = {0, 1};
        frame.op_stage = 1;
        Bytes blob;
        put<std::uint32_t>(blob, 1);
        put<std::int32_t>(blob, 1);
        put<std::int32_t>(blob, 0);
        put<double>(blob, 4.0);
        put<std::uint64_t>(blob, 11);
        put<std::uint32_t>(blob, 0);
        put<std::uint32_t>(blob, 1);
        put<std::uint64_t>(frame.payload, blob.size());
        put<std::uint64_t>(frame.payload, 0);
        put_bytes(frame.payload, blob);
        return frame;
    }

    void step(std::int64_t iteration) {
        give(FrameReceived{activation(iteration)});
        give(FrameReceived{sums(iteration)});
        compute_all();
    }

    template <typename T>
    std::vector<T> reports() const {
        std::vector<T> found;
        for (const WorkerAction& action : actions_) {
            if (const auto* send = std::get_if<SendReport>(&action)) {
                if (const T* each = std::get_if<T>(&send->report)) {
                    found.push_back(*each);
                }
            }
        }
        return found;
    }

    template <typename T>
    std::vector<T> all() const {
        std::vector<T> found;
        for (const WorkerAction& action : actions_) {
            if (const T* each = std::get_if<T>(&action)) {
                found.push_back(*each);
            }
        }
        return found;
    }

    std::int64_t now_ = 0;
    WorkerCore core_{options()};
    StageRunner runner_{[]() -> Result<std::unique_ptr<StageModule>> {
                            return std::make_unique<FakeStage>(1, 2, 2, 1, 5);
                        },
                        true};
    std::vector<ComputeResult> computing_;
    WorkerActions actions_;
};

TEST_F(WorkerCoreTest, SaysHelloAdoptsAndIsReady) {
    give(ControlAttached{});
    ASSERT_EQ(reports<WorkerHello>().size(), 1U);
    EXPECT_EQ(reports<WorkerHello>()[0].version, -1);
    EXPECT_EQ(reports<WorkerHello>()[0].epoch, 0);
    command(plan(1, 0));
    ASSERT_EQ(all<OpenEpoch>().size(), 1U);
    EXPECT_EQ(all<OpenEpoch>()[0].peers.size(), 2U) << "not 1:0, with which it exchanges nothing";
    compute_all();
    EXPECT_TRUE(reports<Ready>().empty()) << "peers are missing";
    give(PeerUp{1, {0, 0}});
    give(PeerUp{1, {1, 1}});
    compute_all();
    ASSERT_EQ(reports<Ready>().size(), 1U);
    EXPECT_EQ(reports<Ready>()[0].version, 0);
}

TEST_F(WorkerCoreTest, AStepReportsAllLosses) {
    begin();
    step(0);
    ASSERT_EQ(reports<StepCommit>().size(), 1U);
    const StepCommit commit = reports<StepCommit>()[0];
    EXPECT_EQ(commit.step, 0);
    ASSERT_EQ(commit.losses.size(), 2U);
    EXPECT_EQ(commit.losses[1].loss, 4.0);
    EXPECT_EQ(core_.version(), 1);
}

TEST_F(WorkerCoreTest, CommitsWaitForTheServerAndBoundTraining) {
    begin();
    give(ControlDetached{});
    step(0);
    step(1);
    EXPECT_EQ(core_.version(), 2);
    step(2);
    EXPECT_EQ(core_.version(), 2) << "two unacknowledged steps are the limit set here";
    actions_.clear();
    give(ControlAttached{});
    EXPECT_EQ(reports<StepCommit>().size(), 2U);
    EXPECT_TRUE(reports<WorkerHello>()[0].running);
    command(CommitAck{0});
    compute_all();
    EXPECT_EQ(core_.version(), 3) << "and on it goes";
}

TEST_F(WorkerCoreTest, AbortDropsAndAnswersTheRealVersion) {
    begin();
    give(FrameReceived{activation(0)});
    give(FrameReceived{sums(0)});
    while (!computing_.empty() && computing_.front().kind != ComputeKind::step) {
        ComputeResult result = std::move(computing_.front());
        computing_.erase(computing_.begin());
        give(Computed{std::move(result)});
    }
    command(AbortEpoch{1});  // in the middle of the optimizer step
    EXPECT_TRUE(reports<Stopped>().empty());
    compute_all();
    ASSERT_EQ(reports<Stopped>().size(), 1U);
    EXPECT_EQ(reports<Stopped>()[0].version, 1);
    EXPECT_EQ(reports<Stopped>()[0].previous_version, 0);
    EXPECT_EQ(reports<StepCommit>().size(), 1U) << "the step was made";
    command(AbortEpoch{0});
    command(AbortEpoch{9});
    EXPECT_EQ(reports<Stopped>().size(), 1U) << "of other epochs";
}

TEST_F(WorkerCoreTest, PausesAtTheBoundaryAndForgetsItWithTheStream) {
    begin();
    command(PauseAt{1, 0});
    EXPECT_FALSE(reports<PauseAnswer>().back().accepted) << "iteration 0 has begun";
    command(PauseAt{1, 1});
    EXPECT_TRUE(reports<PauseAnswer>().back().accepted);
    step(0);
    ASSERT_EQ(reports<Stopped>().size(), 1U);
    EXPECT_EQ(reports<Stopped>()[0].version, 1);
    step(1);
    EXPECT_EQ(core_.version(), 1);
    give(ControlDetached{});
    compute_all();
    EXPECT_EQ(core_.version(), 2) << "the agreement ended with the one who made it";
}

TEST_F(WorkerCoreTest, APeersEndInterrupts) {
    begin();
    give(PeerDown{0, {1, 1}, "old epoch"});
    EXPECT_TRUE(reports<Suspect>().empty());
    give(PeerDown{1, {1, 1}, "reset"});
    ASSERT_EQ(reports<Suspect>().size(), 1U);
    EXPECT_EQ(reports<Suspect>()[0].worker, (WorkerName{1, 1}));
    give(ControlDetached{});
    actions_.clear();
    give(ControlAttached{});
    EXPECT_EQ(reports<Suspect>().size(), 1U) << "said again to whoever comes back";
    EXPECT_FALSE(reports<WorkerHello>()[0].running);
}

TEST_F(WorkerCoreTest, APeerThatNeverComesIsSuspected) {
    give(ControlAttached{});
    command(plan(1, 0));
    give(PeerUp{1, {0, 0}});
    compute_all();
    now_ = 5'000'000;
    give(Tick{});
    give(Tick{});
    ASSERT_EQ(reports<Suspect>().size(), 1U);
    EXPECT_EQ(reports<Suspect>()[0].worker, (WorkerName{1, 1}));
    give(PeerUp{1, {1, 1}});
    EXPECT_EQ(reports<Ready>().size(), 1U) << "better late than never";
}

TEST_F(WorkerCoreTest, FramesThatCannotBeInterrupt) {
    const auto refused = [&](Frame frame) {
        WorkerCoreTest::begin();
        give(FrameReceived{std::move(frame)});
        const bool interrupted = !reports<Suspect>().empty();
        core_ = WorkerCore(options());
        computing_.clear();
        actions_.clear();
        return interrupted;
    };
    Frame ahead = activation(2);
    Frame elsewhere = activation(0);
    elsewhere.op.pipeline = 1;
    Frame outside = activation(0);
    outside.op.microbatch = 1;
    Frame wrong_kind = activation(0);
    wrong_kind.op.kind = OpKind::backward;
    Frame not_a_peer = activation(0);
    not_a_peer.source = {1, 0};
    Frame handshake = activation(0);
    handshake.type = FrameType::hello;
    Frame state = activation(0);
    state.type = FrameType::state;
    Frame piece = sums(0);
    piece.payload[8] = std::byte{1};  // offset 1 of nothing
    Frame huge = sums(0);
    for (std::size_t i = 0; i < 8; ++i) {
        huge.payload[i] = std::byte{0xFF};
    }
    for (const Frame& frame :
         {ahead, elsewhere, outside, wrong_kind, not_a_peer, handshake, state, piece, huge}) {
        EXPECT_TRUE(refused(frame));
    }
    Frame old = activation(0);
    old.epoch = 0;
    EXPECT_FALSE(refused(old)) << "late, not wrong";
}

TEST_F(WorkerCoreTest, TheSameMicrobatchTwiceInterrupts) {
    begin();
    give(FrameReceived{activation(1)});
    give(FrameReceived{activation(1)});
    EXPECT_EQ(reports<Suspect>().size(), 1U);
}

TEST_F(WorkerCoreTest, FinishFencedAndForeignPlansEndIt) {
    begin();
    command(Finish{5});
    ASSERT_EQ(all<ExitWorker>().size(), 1U);
    EXPECT_EQ(all<ExitWorker>()[0].code, 0);
    EXPECT_TRUE(core_.exited());

    WorkerCore fenced(options());
    const WorkerActions actions = fenced.handle(CommandReceived{Fenced{"gone"}}, 0);
    EXPECT_EQ(std::get<ExitWorker>(actions.at(0)).code, 3);

    WorkerCore foreign(options());
    foreign.handle(ControlAttached{}, 0);
    EpochPlan other = plan(1, 0);
    other.spec.steps = 6;
    const WorkerActions refused = foreign.handle(CommandReceived{other}, 0);
    EXPECT_EQ(std::get<ExitWorker>(refused.back()).code, 1);
}

// The holder of the newest version may die right after a peer has copied it, while another stage's
// only copy is one step behind: then the copy must go back, and the losses that only the holder
// knew must be known.
TEST_F(WorkerCoreTest, AStateIsCopiedWithItsUndoAndItsUnstoredSteps) {
    begin();
    give(ControlDetached{});
    step(0);
    give(ControlAttached{});
    command(AbortEpoch{1});
    compute_all();
    EpochPlan second = plan(2, 1);
    second.live.erase(second.live.begin());  // stage 0 keeps pipeline 1
    command(second);
    give(PeerUp{2, {1, 0}});
    give(PeerUp{2, {1, 1}});
    compute_all();

    WorkerOptions other = options();
    other.self = {1, 1};
    WorkerCore copy(other);
    StageRunner copy_runner(
        []() -> Result<std::unique_ptr<StageModule>> {
            return std::make_unique<FakeStage>(1, 2, 2, 1, 5);
        },
        true);
    WorkerActions done;
    const std::function<void(WorkerEvent)> give_copy = [&](WorkerEvent event) {
        for (WorkerAction& action : copy.handle(std::move(event), now_)) {
            if (auto* compute = std::get_if<StartCompute>(&action)) {
                give_copy(Computed{copy_runner.run(compute->task)});
            } else if (auto* send = std::get_if<SendFrame>(&action)) {
                give(FrameReceived{send->frame});  // the request
            } else {
                done.push_back(std::move(action));
            }
        }
    };
    actions_.clear();
    second.state_from_pipeline = 0;
    give_copy(ControlAttached{});
    give_copy(CommandReceived{second});
    give_copy(PeerUp{2, {1, 0}});
    give_copy(PeerUp{2, {0, 1}});
    compute_all();
    for (const SendFrame& send : all<SendFrame>()) {
        give_copy(FrameReceived{send.frame});
    }
    EXPECT_EQ(copy.version(), 1);
    give_copy(ControlDetached{});
    done.clear();
    give_copy(ControlAttached{});
    EXPECT_EQ(std::get<StepCommit>(std::get<SendReport>(done.at(1)).report).step, 0);
    give_copy(CommandReceived{AbortEpoch{2}});
    const auto stopped = std::get<Stopped>(std::get<SendReport>(done.back()).report);
    EXPECT_EQ(stopped.version, 1);
    EXPECT_EQ(stopped.previous_version, 0);
    give_copy(CommandReceived{plan(3, 0)});
    EXPECT_EQ(copy.version(), 0);
}

TEST_F(WorkerCoreTest, AComputationThatHangsEndsTheWorker) {
    begin();
    give(FrameReceived{activation(0)});
    now_ = 599'000'000;
    give(Tick{});
    EXPECT_FALSE(core_.exited());
    now_ = 600'000'000;
    give(Tick{});
    ASSERT_EQ(reports<WorkerFailed>().size(), 1U);
    EXPECT_EQ(reports<WorkerFailed>()[0].why, "a computation took longer than 600 s");
    EXPECT_TRUE(core_.exited());
}

TEST_F(WorkerCoreTest, AnErrorInTheNumbersIsReported) {
    begin();
    ComputeResult failed;
    give(FrameReceived{activation(0)});
    failed.id = computing_.at(0).id;
    failed.error = make_error(Errc::numeric_overflow, "gradient out of range");
    computing_.clear();
    give(Computed{std::move(failed)});
    ASSERT_EQ(reports<WorkerFailed>().size(), 1U);
    EXPECT_THAT(reports<WorkerFailed>()[0].why, HasSubstr("gradient out of range"));
    EXPECT_EQ(all<ExitWorker>()[0].code, 1);
}

}  // namespace
}  // namespace holdfast::training
