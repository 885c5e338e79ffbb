// SPDX-License-Identifier: Apache-2.0
#include "job_ref.hpp"

#include <limits>

#include "json.hpp"
#include "text.hpp"

namespace holdfast::cli {
namespace {

constexpr std::int32_t kElementsMax = 10'000;

}  // namespace

Result<v1::ListJobsResponse> elements_of(Session& session, std::int64_t array) {
    HOLD_TRY(Client * client, session.client());
    v1::ListJobsRequest request;
    request.set_array(array);
    request.set_ended(true);
    request.set_limit(kElementsMax);
    HOLD_TRY(v1::ListJobsResponse rows, client->list_jobs(request));
    v1::ListJobsResponse elements;
    for (v1::Job& job : *rows.mutable_jobs()) {
        if (job.array_parent() == array) {
            *elements.add_jobs() = std::move(job);
        }
    }
    return elements;
}

std::string JobRef::label() const {
    return index ? fmt::format("job-{}_{}", id, *index) : fmt::format("job-{}", id);
}

Result<JobRef> parse_job_ref(std::string_view text, bool with_rank) {
    const auto refuse = [&] {
        return fail(make_error(Errc::invalid_argument, "`{}` is not a job", printable(text))
                        .at(printable(text))
                        .advise(with_rank ? "write 42, job-42, 42_3 (array element) or 42.1 (rank)"
                                          : "write 42, job-42 or 42_3 (array element)"));
    };
    constexpr std::int64_t kMax32 = std::numeric_limits<std::int32_t>::max();
    JobRef ref;
    std::string_view rest = text;
    if (rest.starts_with("job-")) {
        rest.remove_prefix(4);
    }
    const auto dot = rest.find('.');
    if (dot != std::string_view::npos) {
        const auto rank = parse_integer(rest.substr(dot + 1), 0, kMax32);
        if (!with_rank || !rank) {
            return refuse();
        }
        ref.rank = static_cast<std::int32_t>(*rank);
        rest = rest.substr(0, dot);
    }
    if (const auto under = rest.find('_'); under != std::string_view::npos) {
        const auto index = parse_integer(rest.substr(under + 1), 0, kMax32);
        if (!index) {
            return refuse();
        }
        ref.index = static_cast<std::int32_t>(*index);
        rest = rest.substr(0, under);
    }
    const auto id = parse_integer(rest, 1, std::numeric_limits<std::int64_t>::max());
    if (!id) {
        return refuse();
    }
    ref.id = *id;
    return ref;
}

Result<std::int64_t> resolve(Session& session, const JobRef& ref) {
    if (!ref.index) {
        return ref.id;
    }
    HOLD_TRY(const v1::ListJobsResponse elements, elements_of(session, ref.id));
    for (const v1::Job& job : elements.jobs()) {
        if (job.array_index() == *ref.index) {
            return job.id();
        }
    }
    return fail(make_error(Errc::not_found, "no element {} in the array job-{}", *ref.index, ref.id)
                    .at(ref.label())
                    .advise("see `hold jobs --all`"));
}

Result<std::vector<std::int64_t>> resolve_all(Session& session, const JobRef& ref) {
    if (ref.index) {
        HOLD_TRY(const std::int64_t id, resolve(session, ref));
        return std::vector<std::int64_t>{id};
    }
    HOLD_TRY(const v1::ListJobsResponse elements, elements_of(session, ref.id));
    std::vector<std::int64_t> ids;
    for (const v1::Job& job : elements.jobs()) {
        ids.push_back(job.id());
    }
    if (ids.empty()) {
        ids.push_back(ref.id);
    }
    return ids;
}

Result<int> for_each_job(Session& session, const std::vector<std::string>& ids,
                         const std::string& done,
                         const std::function<Result<v1::Job>(Client&, std::int64_t)>& act) {
    std::vector<JobRef> refs;
    for (const std::string& id : ids) {
        HOLD_TRY(JobRef ref, parse_job_ref(id));
        refs.push_back(ref);
    }
    HOLD_TRY(Client * client, session.client());
    v1::ListJobsResponse jobs;
    std::vector<Error> errors;
    std::string text;
    for (const JobRef& ref : refs) {
        auto answer = resolve(session, ref).and_then([&](std::int64_t id) -> Result<v1::Job> {
            return act(*client, id);
        });
        if (!answer) {
            errors.push_back(std::move(answer).error());
            continue;
        }
        text += fmt::format("{} {}\n", ref.label(), done);
        *jobs.add_jobs() = std::move(*answer);
    }
    if (refs.size() == 1 && !errors.empty()) {
        return fail(errors.front());  // the usual case: one id, one error
    }
    Listing listing = job_listing(jobs.jobs(), session.now_us());
    listing.extra["errors"] = Json::array();
    for (const Error& error : errors) {
        listing.extra["errors"].push_back(error_object(error)["error"]);
        session.note(error_text(error, session.verb, false));
    }
    if (session.output.is_for_people()) {
        HOLD_TRY(session.around.out.write(text));
    } else {
        HOLD_TRY(print(session, std::move(listing)));
    }
    return errors.empty() ? 0 : exit_code_of(errors.front().code);
}

Result<> print(Session& session, Listing listing) {
    HOLD_TRY(const std::string text, render(std::move(listing), session.output));
    return session.around.out.write(text);
}

Result<> print(Session& session, const Json& object, const std::string& text,
               const std::string& name) {
    HOLD_TRY(const std::string rendered, render_object(object, text, name, session.output));
    return session.around.out.write(rendered);
}

}  // namespace holdfast::cli
