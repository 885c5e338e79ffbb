// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <system_error>

#include "app.hpp"
#include "job_ref.hpp"
#include "text.hpp"
#include "verbs.hpp"

namespace holdfast::cli {
namespace {

constexpr const char* kNeighbours[] = {"hold-server", "hold-agent", "hold-launch", "hold-sql",
                                       "hold-train"};

/// Which of our programs stand in libexec.
Json neighbours() {
    Json found = Json::object();
    for (const char* name : kNeighbours) {
        std::error_code error;
        found[name] = std::filesystem::exists(libexec_folder() + "/" + name, error);
    }
    return found;
}

Json server_json(const v1::ServerInfo& info) {
    return {{"version", info.version()},
            {"started_us", info.started_us()},
            {"pid", info.pid()},
            {"data_dir", info.data_dir()},
            {"schema_version", info.schema_version()},
            {"user", info.user()},
            {"role", info.role()}};
}

Result<int> version(Session& session, bool verbose) {
    Json object = {{"version", HOLDFAST_VERSION}};
    std::string text = fmt::format("hold {}\n", HOLDFAST_VERSION);
    if (verbose) {
        object["compiler"] = __VERSION__;
        object["protobuf"] = google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION);
        object["libexec"] = libexec_folder();
        object["neighbours"] = neighbours();
        object["server"] = nullptr;
        text += fmt::format("compiler:   {}\nprotobuf:   {}\nlibexec:    {}\n", __VERSION__,
                            object["protobuf"].get<std::string>(), libexec_folder());
        for (const auto& [name, there] : object["neighbours"].items()) {
            text += fmt::format("{:<11} {}\n", name + ":", there.get<bool>() ? "there" : "missing");
        }
        HOLD_TRY(Client * client, session.client());
        if (auto info = client->info(); info) {
            object["server"] = server_json(*info);
            text += fmt::format("server:     {} at {}, pid {}, schema {}, you are {} ({})\n",
                                printable(info->version()), client->address(), info->pid(),
                                info->schema_version(), printable(info->user()),
                                printable(info->role()));
        } else {
            text += fmt::format("server:     {}\n", printable(info.error().message));
        }
    }
    HOLD_TRY(print(session, object, text, HOLDFAST_VERSION));
    return 0;
}

}  // namespace

Verb version_verb() {
    return {.name = "version",
            .summary = "prints the version",
            .group = "About",
            .prints = Prints::object,
            .declare = [](Flags& flags) -> Command {
                auto verbose = std::make_shared<bool>(false);
                flags.flag("-v,--verbose", *verbose, "also the build, the programs and the server");
                return [verbose](Session& session) { return version(session, *verbose); };
            },
            .examples = {"hold version", "hold version --verbose --json"},
            .notes = "In JSON, `server` is null where no server answers."};
}

}  // namespace holdfast::cli
