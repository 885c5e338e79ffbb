// SPDX-License-Identifier: Apache-2.0
// Who may call what: every method of the API by every role, from the same table that the server
// looks into, and checked against the API description, so that no method can be forgotten.
#include "access.hpp"

#include <set>

#include <grpcpp/generic/generic_stub.h>

#include "fixture.hpp"

namespace holdfast::server::testing {
namespace {

using AccessTest = ServerTest;

/// Calls the method with empty messages and returns the Holdfast code it ends with. Streams are
/// opened, half-closed, and read to their end.
class Caller {
  public:
    Caller(std::shared_ptr<grpc::Channel> channel) : stub_(std::move(channel)) {}

    std::string call(std::string_view verb, const std::string& token, bool expect_quick = true) {
        const auto dot = verb.find('.');
        const std::string path = "/holdfast.v1." + std::string(verb.substr(0, dot)) + "/" +
                                 std::string(verb.substr(dot + 1));
        grpc::ClientContext context;
        context.set_deadline(std::chrono::system_clock::now() + kPatience);
        if (!token.empty()) {
            context.AddMetadata("authorization", "Bearer " + token);
        }
        grpc::CompletionQueue queue;
        grpc::ByteBuffer reply;
        grpc::Status status;
        auto stream = stub_.PrepareCall(&context, path, &queue);
        stream->StartCall(tag(1));
        wait(queue);
        stream->Write(empty(), tag(2));
        wait(queue);
        stream->WritesDone(tag(3));
        wait(queue);
        bool has_more = true;
        while (has_more) {
            stream->Read(&reply, tag(4));
            has_more = wait(queue);
        }
        stream->Finish(&status, tag(5));
        wait(queue);
        EXPECT_TRUE(expect_quick);
        return code_of(status, context);
    }

  private:
    static void* tag(std::intptr_t number) {
        return reinterpret_cast<void*>(number);  // SAFETY: gRPC only hands it back
    }

    static grpc::ByteBuffer empty() {
        const grpc::Slice nothing("", 0);
        return {&nothing, 1};
    }

    static bool wait(grpc::CompletionQueue& queue) {
        void* done = nullptr;
        bool ok = false;
        return queue.Next(&done, &ok) && ok;
    }

    grpc::GenericStub stub_;
};

TEST(AccessTable, NamesEveryMethodOfTheApiOnce) {
    std::set<std::string> described;
    for (const char* name : {"Jobs", "Nodes", "Pools", "Tokens", "System", "Agents", "Training"}) {
        const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(
            std::string("holdfast.v1.") + name);
        ASSERT_NE(service, nullptr) << name;
        for (int i = 0; i < service->method_count(); ++i) {
            described.insert(std::string(name) + "." + service->method(i)->name());
        }
    }
    std::set<std::string> ruled;
    for (const VerbRule& rule : kVerbs) {
        EXPECT_TRUE(ruled.insert(std::string(rule.name)).second) << rule.name;
        EXPECT_EQ(&rule_of(rule.verb), &rule);
        EXPECT_NE(rule.roles, 0U) << rule.name;
    }
    EXPECT_EQ(ruled, described);
}

TEST(AccessTable, OwnerRules) {
    server::Caller user;
    user.user = "anna";
    server::Caller op;
    op.user = "otto";
    op.role = Role::operator_;
    EXPECT_TRUE(check_owner(user, Verb::jobs_cancel, "anna"));
    EXPECT_EQ(check_owner(user, Verb::jobs_cancel, "bert").error().code, Errc::denied);
    EXPECT_TRUE(check_owner(op, Verb::jobs_cancel, "bert"));
}

TEST(AccessTable, UserNames) {
    for (const char* good : {"anna", "a.b-c_d", "A1", "_x"}) {
        EXPECT_TRUE(check_user_name(good)) << good;
    }
    for (const char* bad : {"", "-rf", ".x", "a b", "a/b", "a\n", "ä"}) {
        EXPECT_FALSE(check_user_name(bad)) << bad;
    }
    EXPECT_FALSE(check_user_name(std::string(65, 'a')));
}

TEST_F(AccessTest, RoleTimesVerbMatrix) {
    const std::map<Role, std::string> tokens = {{Role::user, token("anna", "user")},
                                                {Role::operator_, token("otto", "operator")},
                                                {Role::admin, token("ada", "admin")},
                                                {Role::node, token("n1", "node")}};
    Caller caller(channel_);
    for (const VerbRule& rule : kVerbs) {
        for (const auto& [role, secret] : tokens) {
            const std::string code = caller.call(rule.name, secret);
            const bool may = (rule.roles & (static_cast<unsigned>(role) |
                                            static_cast<unsigned>(Role::bearer))) != 0;
            // An empty message may be wrong in any other way, but it is not refused.
            EXPECT_EQ(code != "denied", may)
                << rule.name << " by " << to_string(role) << ": " << code;
        }
    }
}

TEST_F(AccessTest, WrongTokensAreNobody) {
    const std::string good = token("anna", "user");
    const std::string enrol = token("n9", "enrol");
    Caller caller(channel_);
    for (const std::string& bad : {std::string("hf_"), good + "0", good.substr(0, good.size() - 1),
                                   std::string(4096, 'x'), enrol}) {
        EXPECT_EQ(caller.call("System.Info", bad), "unauthenticated");
    }
    EXPECT_EQ(caller.call("System.Info", good), "ok");
}

TEST_F(AccessTest, RevokedTokensStopAtOnce) {
    const std::string secret = token("anna", "user");
    v1::ListTokensResponse tokens;
    Call list;
    ASSERT_TRUE(tokens_->List(&list.context, {}, &tokens).ok());
    for (const v1::Token& found : tokens.tokens()) {
        EXPECT_TRUE(found.secret().empty());
        if (found.user() == "anna") {
            Call revoke;
            v1::Empty nothing;
            EXPECT_TRUE(tokens_->Revoke(&revoke.context, found, &nothing).ok());
        }
    }
    EXPECT_EQ(Caller(channel_).call("System.Info", secret), "unauthenticated");
}

TEST_F(AccessTest, NobodyGivesWhatTheyDoNotHold) {
    const std::string anna = token("anna", "user");
    const std::string otto = token("otto", "operator");
    const auto create = [&](const std::string& by, const std::string& user,
                            const std::string& role) {
        v1::Token request;
        request.set_user(user);
        request.set_role(role);
        v1::Token response;
        Call call(by);
        const auto status = tokens_->Create(&call.context, request, &response);
        return code_of(status, call.context);
    };
    EXPECT_EQ(create(anna, "anna", "user"), "ok");
    EXPECT_EQ(create(anna, "", ""), "ok");
    EXPECT_EQ(create(anna, "bert", "user"), "denied");
    EXPECT_EQ(create(anna, "anna", "operator"), "denied");
    EXPECT_EQ(create(anna, "anna", "admin"), "denied");
    EXPECT_EQ(create(anna, "n1", "node"), "denied");
    EXPECT_EQ(create(anna, "n1", "enrol"), "denied");
    EXPECT_EQ(create(otto, "otto", "operator"), "ok");
    EXPECT_EQ(create(otto, "otto", "admin"), "denied");
    EXPECT_EQ(create(otto, "anna", "user"), "denied");
    EXPECT_EQ(create("", "anna", "king"), "invalid_argument");
}

TEST_F(AccessTest, OthersJobsCanBeSeenButNotTouched) {
    v1::JobSpec spec = sleeper();
    (*spec.mutable_env())["PASSWORD"] = "x";
    const std::int64_t id = submit(spec);  // belongs to nobody
    const std::string anna = token("anna", "user");
    const std::string owner = token("nobody", "user");
    const std::string otto = token("otto", "operator");
    const auto act = [&](const std::string& by, const std::string& what) {
        v1::JobRef job;
        job.set_job(id);
        v1::Job answer;
        Call call(by);
        grpc::Status status;
        if (what == "pause") {
            status = jobs_->Pause(&call.context, job, &answer);
        } else if (what == "resume") {
            status = jobs_->Resume(&call.context, job, &answer);
        } else if (what == "why") {
            v1::WhyResponse why;
            status = jobs_->Why(&call.context, job, &why);
        } else if (what == "logs") {
            v1::LogsRequest request;
            request.set_job(id);
            request.set_rank(-1);
            auto reader = jobs_->Logs(&call.context, request);
            v1::LogChunk chunk;
            while (reader->Read(&chunk)) {
            }
            status = reader->Finish();
        } else {
            v1::CancelRequest request;
            request.set_job(id);
            status = jobs_->Cancel(&call.context, request, &answer);
        }
        return code_of(status, call.context);
    };
    for (const char* what : {"pause", "resume", "logs", "cancel"}) {
        EXPECT_EQ(act(anna, what), "denied") << what;
    }
    EXPECT_EQ(act(anna, "why"), "ok");
    EXPECT_EQ(act(owner, "logs"), "ok");
    EXPECT_EQ(act(otto, "pause"), "ok");
    EXPECT_EQ(act(owner, "resume"), "ok");

    v1::JobRef ref;
    ref.set_job(id);
    v1::Job seen;
    Call by_anna(anna);
    ASSERT_TRUE(jobs_->Get(&by_anna.context, ref, &seen).ok());
    EXPECT_TRUE(seen.spec().env().empty());
    EXPECT_TRUE(seen.spec().run().empty());
    Call by_owner(owner);
    ASSERT_TRUE(jobs_->Get(&by_owner.context, ref, &seen).ok());
    EXPECT_EQ(seen.spec().env().at("PASSWORD"), "x");
    EXPECT_EQ(act(owner, "cancel"), "ok");
}

TEST_F(AccessTest, SubmittingForOthersIsForAdmins) {
    const auto submit_as = [&](const std::string& by, const std::string& user) {
        v1::SubmitRequest request;
        *request.mutable_spec() = sleeper();
        request.set_user(user);
        v1::SubmitResponse response;
        Call call(by);
        const auto status = jobs_->Submit(&call.context, request, &response);
        return code_of(status, call.context);
    };
    const std::string anna = token("anna", "user");
    EXPECT_EQ(submit_as(anna, ""), "ok");
    EXPECT_EQ(submit_as(anna, "anna"), "ok");
    EXPECT_EQ(submit_as(anna, "bert"), "denied");
    EXPECT_EQ(submit_as(token("otto", "operator"), "bert"), "denied");
    EXPECT_EQ(submit_as("", "bert"), "ok");
    EXPECT_EQ(submit_as("", "root"), "denied");
    EXPECT_EQ(submit_as(token("root", "admin"), ""), "denied");
    EXPECT_EQ(submit_as("", "no such name"), "invalid_argument");
}

TEST_F(AccessTest, TheSocketKnowsItsPeer) {
    v1::ServerInfo info;
    Call call;
    ASSERT_TRUE(system_->Info(&call.context, {}, &info).ok());
    EXPECT_EQ(info.role(), "admin");  // the server's own uid
    EXPECT_EQ(info.pid(), getpid());
    EXPECT_EQ(info.data_dir(), options().data_dir);
    Call as_user(token("anna", "user"));
    v1::ServerInfo seen;
    ASSERT_TRUE(system_->Info(&as_user.context, {}, &seen).ok());
    EXPECT_EQ(seen.user(), "anna");
    EXPECT_EQ(seen.role(), "user");
    EXPECT_TRUE(seen.data_dir().empty());
}

}  // namespace
}  // namespace holdfast::server::testing
