// SPDX-License-Identifier: Apache-2.0
#include "task_files.hpp"

#include <cerrno>
#include <set>
#include <system_error>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

namespace holdfast::agent {
namespace {

using nlohmann::json;

constexpr std::size_t kExitBytes = 8192;
constexpr std::size_t kReasonBytesMax = 2000;
// The kernel's limits: 128 KiB per string (MAX_ARG_STRLEN); 2 MiB for all is the smallest usual.
constexpr std::size_t kStringBytesMax = 128 * 1024 - 1;
constexpr std::size_t kEnvironmentBytesMax = 1 << 20;

std::string text_of(const json& object) {
    return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

/// Takes the fields of one object by name; what is left over at the end is an error.
class Fields {
  public:
    Fields(const std::string& text, const char* what)
        : what_(what), object_(json::parse(text, nullptr, /*allow_exceptions=*/false)) {
        if (!object_.is_object()) {
            complain("is not a JSON object");
        }
    }

    void take(const char* name, std::int64_t& into) {
        if (const json* value = find(name, &json::is_number_integer)) {
            into = value->get<std::int64_t>();
        }
    }

    void take(const char* name, std::uint64_t& into) {
        if (const json* value = find(name, &json::is_number_unsigned)) {
            into = value->get<std::uint64_t>();
        }
    }

    void take(const char* name, int& into) {
        std::int64_t number = 0;
        take(name, number);
        if (number < INT32_MIN || number > INT32_MAX) {
            complain(fmt::format("has `{}` out of range", name));
            return;
        }
        into = static_cast<int>(number);
    }

    void take(const char* name, bool& into) {
        if (const json* value = find(name, &json::is_boolean)) {
            into = value->get<bool>();
        }
    }

    void take(const char* name, std::string& into) {
        if (const json* value = find(name, &json::is_string)) {
            into = value->get<std::string>();
        }
    }

    void take(const char* name, std::vector<std::string>& into) {
        const json* value = find(name, &json::is_array);
        if (value == nullptr) {
            return;
        }
        for (const json& entry : *value) {
            if (!entry.is_string()) {
                complain(fmt::format("has `{}` of the wrong kind", name));
                return;
            }
            into.push_back(entry.get<std::string>());
        }
    }

    void take(const char* name, std::map<std::string, std::string>& into) {
        const json* value = find(name, &json::is_object);
        if (value == nullptr) {
            return;
        }
        for (const auto& [key, entry] : value->items()) {
            if (!entry.is_string()) {
                complain(fmt::format("has `{}.{}` of the wrong kind", name, key));
                return;
            }
            into[key] = entry.get<std::string>();
        }
    }

    Result<> finish() {
        if (error_.empty()) {
            for (const auto& [key, value] : object_.items()) {
                if (!taken_.contains(key)) {
                    complain(fmt::format("has an unknown field `{}`", key));
                    break;
                }
            }
        }
        if (!error_.empty()) {
            return fail(Errc::invalid_argument, "{} {}", what_, error_);
        }
        return {};
    }

  private:
    using Kind = bool (json::*)() const noexcept;

    const json* find(const char* name, Kind kind) {
        taken_.insert(name);
        if (!object_.is_object()) {
            return nullptr;
        }
        const auto found = object_.find(name);
        if (found == object_.end()) {
            complain(fmt::format("lacks the field `{}`", name));
            return nullptr;
        }
        if (!((*found).*kind)()) {
            complain(fmt::format("has `{}` of the wrong kind", name));
            return nullptr;
        }
        return &*found;
    }

    void complain(std::string text) {
        if (error_.empty()) {
            error_ = std::move(text);
        }
    }

    const char* what_;
    json object_;
    std::set<std::string> taken_;
    std::string error_;
};

Error io_error(int number, const char* action, const char* name) {
    const Errc code = number == ENOENT                       ? Errc::not_found
                      : number == EACCES || number == EPERM  ? Errc::denied
                      : number == ENOSPC || number == EDQUOT ? Errc::store_full
                                                             : Errc::failed;
    return make_error(code, "{} {}: {}", action, name, errno_text(number));
}

Result<> write_all(int file, const std::string& bytes, const char* name) {
    std::size_t done = 0;
    while (done < bytes.size()) {
        const ssize_t wrote = ::write(file, bytes.data() + done, bytes.size() - done);
        if (wrote < 0 && errno == EINTR) {
            continue;
        }
        if (wrote <= 0) {
            return fail(io_error(errno, "write", name));
        }
        done += static_cast<std::size_t>(wrote);
    }
    return {};
}

bool has_nul(const std::string& text) {
    return text.find('\0') != std::string::npos;
}

}  // namespace

std::string errno_text(int number) {
    return std::error_code(number, std::generic_category()).message();
}

std::string to_json(const LaunchSpec& spec) {
    return text_of({{"task", spec.task},
                    {"job", spec.job},
                    {"lease", spec.lease},
                    {"user", spec.user},
                    {"run", spec.run},
                    {"program", spec.program},
                    {"arguments", spec.arguments},
                    {"env", spec.env},
                    {"workdir", spec.workdir},
                    {"time_limit_ms", spec.time_limit_ms},
                    {"grace_ms", spec.grace_ms},
                    {"log_bytes_max", spec.log_bytes_max},
                    {"open_files", spec.open_files},
                    {"has_secret", spec.has_secret}});
}

std::string to_json(const LauncherRecord& record) {
    return text_of({{"pid", record.pid},
                    {"start_ticks", record.start_ticks},
                    {"boot_id", record.boot_id},
                    {"start_us", record.start_us}});
}

std::string to_json(const StopRequest& request) {
    return text_of({{"grace_ms", request.grace_ms}, {"reason", request.reason}});
}

std::string to_json(const ExitRecord& record) {
    return text_of({{"state", record.state},
                    {"exit_code", record.exit_code},
                    {"signal", record.signal},
                    {"start_us", record.start_us},
                    {"end_us", record.end_us},
                    {"reason", record.reason.substr(0, kReasonBytesMax)},
                    {"lost_bytes", record.lost_bytes}});
}

Result<LaunchSpec> launch_spec_from(const std::string& text) {
    LaunchSpec spec;
    Fields fields(text, kSpecFile);
    fields.take("task", spec.task);
    fields.take("job", spec.job);
    fields.take("lease", spec.lease);
    fields.take("user", spec.user);
    fields.take("run", spec.run);
    fields.take("program", spec.program);
    fields.take("arguments", spec.arguments);
    fields.take("env", spec.env);
    fields.take("workdir", spec.workdir);
    fields.take("time_limit_ms", spec.time_limit_ms);
    fields.take("grace_ms", spec.grace_ms);
    fields.take("log_bytes_max", spec.log_bytes_max);
    fields.take("open_files", spec.open_files);
    fields.take("has_secret", spec.has_secret);
    HOLD_TRY(fields.finish());
    HOLD_TRY(check_spec(spec));
    return spec;
}

Result<LauncherRecord> launcher_record_from(const std::string& text) {
    LauncherRecord record;
    Fields fields(text, kLauncherFile);
    fields.take("pid", record.pid);
    fields.take("start_ticks", record.start_ticks);
    fields.take("boot_id", record.boot_id);
    fields.take("start_us", record.start_us);
    HOLD_TRY(fields.finish());
    // 0 and 1 would make a signal hit our own group or init.
    if (record.pid <= 1) {
        return fail(Errc::invalid_argument, "{} names the process {}", kLauncherFile, record.pid);
    }
    return record;
}

Result<StopRequest> stop_request_from(const std::string& text) {
    StopRequest request;
    Fields fields(text, kStopFile);
    fields.take("grace_ms", request.grace_ms);
    fields.take("reason", request.reason);
    HOLD_TRY(fields.finish());
    return request;
}

Result<ExitRecord> exit_record_from(const std::string& text) {
    ExitRecord record;
    Fields fields(text, kExitFile);
    fields.take("state", record.state);
    fields.take("exit_code", record.exit_code);
    fields.take("signal", record.signal);
    fields.take("start_us", record.start_us);
    fields.take("end_us", record.end_us);
    fields.take("reason", record.reason);
    fields.take("lost_bytes", record.lost_bytes);
    HOLD_TRY(fields.finish());
    static const std::set<std::string> kStates = {"completed", "failed", "cancelled", "timeout",
                                                  "lost"};
    if (!kStates.contains(record.state)) {
        return fail(Errc::invalid_argument, "{} has the unknown state `{}`", kExitFile,
                    record.state);
    }
    return record;
}

Result<> check_spec(const LaunchSpec& spec) {
    if (spec.task <= 0 || spec.lease <= 0) {
        return fail(make_error(Errc::invalid_argument, "task {} with lease {}: both must be set",
                               spec.task, spec.lease)
                        .at("lease"));
    }
    if (spec.user.empty() || has_nul(spec.user)) {
        return fail(make_error(Errc::invalid_argument, "no user to run as").at("user"));
    }
    if (spec.run.empty() == spec.program.empty()) {
        return fail(make_error(Errc::invalid_argument,
                               "either shell text or a program must be given, and not both")
                        .at("run"));
    }
    if (spec.run.size() > kStringBytesMax) {
        return fail(make_error(Errc::too_large, "the shell text has {} bytes, the system takes {}",
                               spec.run.size(), kStringBytesMax)
                        .at("run")
                        .advise("put the text into a file and run that"));
    }
    if (has_nul(spec.run) || has_nul(spec.workdir) || has_nul(spec.program)) {
        return fail(make_error(Errc::invalid_argument, "a NUL byte in text").at("run"));
    }
    if (!spec.workdir.empty() && spec.workdir.front() != '/') {
        return fail(make_error(Errc::invalid_argument, "the path {} is not absolute", spec.workdir)
                        .at("workdir"));
    }
    if (spec.time_limit_ms < 0 || spec.grace_ms < 0 || spec.log_bytes_max < 0 ||
        spec.open_files < 0) {
        return fail(make_error(Errc::invalid_argument, "a negative limit").at("time_limit_ms"));
    }
    std::size_t total = 0;
    for (const auto& [name, value] : spec.env) {
        const std::size_t bytes = name.size() + value.size() + 2;
        total += bytes;
        if (name.empty() || name.find('=') != std::string::npos || has_nul(name) ||
            has_nul(value)) {
            return fail(
                make_error(Errc::invalid_argument, "`{}` cannot be a variable", name).at("env"));
        }
        if (bytes > kStringBytesMax || total > kEnvironmentBytesMax) {
            return fail(make_error(Errc::too_large, "the environment is too large at `{}`", name)
                            .at("env")
                            .advise("pass long values in a file"));
        }
    }
    return {};
}

Result<std::string> read_at(int folder, const char* name, std::size_t bytes_max) {
    const Fd file(::openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    if (!file.is_open()) {
        return fail(io_error(errno, "open", name));
    }
    struct stat facts = {};
    if (::fstat(file.get(), &facts) != 0 || !S_ISREG(facts.st_mode)) {
        return fail(Errc::failed, "open {}: it is not a plain file", name);
    }
    std::string text;
    char buffer[16384];
    while (true) {
        const ssize_t got = ::read(file.get(), buffer, sizeof buffer);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return fail(io_error(errno, "read", name));
        }
        if (got == 0) {
            return text;
        }
        text.append(buffer, static_cast<std::size_t>(got));
        if (text.size() > bytes_max) {
            return fail(Errc::too_large, "read {}: it holds more than {} bytes", name, bytes_max);
        }
    }
}

Result<> write_at(int folder, const char* name, const std::string& bytes, bool durable) {
    const std::string temporary = fmt::format(".{}.new", name);
    ::unlinkat(folder, temporary.c_str(), 0);  // left by a writer that died; absent otherwise
    const Fd file(::openat(folder, temporary.c_str(),
                           O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!file.is_open()) {
        return fail(io_error(errno, "create", temporary.c_str()));
    }
    auto written = write_all(file.get(), bytes, name);
    if (written && durable && ::fsync(file.get()) != 0) {
        written = fail(io_error(errno, "sync", name));
    }
    if (written && ::renameat(folder, temporary.c_str(), folder, name) != 0) {
        written = fail(io_error(errno, "rename", name));
    }
    if (!written) {
        ::unlinkat(folder, temporary.c_str(), 0);
        return written;
    }
    if (durable && ::fsync(folder) != 0) {
        return fail(io_error(errno, "sync the folder of", name));
    }
    return {};
}

bool exists_at(int folder, const char* name) {
    struct stat facts = {};
    return ::fstatat(folder, name, &facts, AT_SYMLINK_NOFOLLOW) == 0;
}

namespace {
constexpr const char* kExitTemporary = ".exit.json.reserved";
}  // namespace

Result<ExitFile> ExitFile::reserve(int folder) {
    ::unlinkat(folder, kExitTemporary, 0);
    Fd file(::openat(folder, kExitTemporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                     0600));
    if (!file.is_open()) {
        return fail(io_error(errno, "create", kExitFile));
    }
    if (const int error = ::posix_fallocate(file.get(), 0, kExitBytes); error != 0) {
        return fail(io_error(error, "reserve space for", kExitFile));
    }
    return ExitFile(folder, std::move(file));
}

Result<> ExitFile::write(const ExitRecord& record) {
    const std::string bytes = to_json(record);
    if (::lseek(file_.get(), 0, SEEK_SET) != 0) {
        return fail(io_error(errno, "seek in", kExitFile));
    }
    HOLD_TRY(write_all(file_.get(), bytes, kExitFile));
    if (::ftruncate(file_.get(), static_cast<off_t>(bytes.size())) != 0 ||
        ::fsync(file_.get()) != 0 || ::renameat(folder_, kExitTemporary, folder_, kExitFile) != 0 ||
        ::fsync(folder_) != 0) {
        return fail(io_error(errno, "write", kExitFile));
    }
    return {};
}

}  // namespace holdfast::agent
