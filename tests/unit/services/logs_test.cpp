// SPDX-License-Identifier: Apache-2.0
#include "world.hpp"

namespace holdfast::services {
namespace {

class Logs : public testing::Test {
  protected:
    Logs() {
        world_.node("n1");
        job_ = world_.submit_one(command());
        lease_ = world_.granted(job_, {"n1"}).at(0);
    }

    Result<std::int64_t> append(std::int64_t offset, const std::string& text,
                                const std::string& stream = "stdout") {
        return append_under(lease_.id, offset, text, stream);
    }

    Result<std::int64_t> append_under(LeaseId lease, std::int64_t offset, const std::string& text,
                                      const std::string& stream = "stdout") {
        return world_.call([&](store::Tx& tx) {
            return append_log(tx, lease_.task, lease, stream, offset, text);
        });
    }

    std::string stored(const std::string& stream = "stdout") {
        auto rows = world_.read([&](store::ReadTx& tx) {
            return tx.query("SELECT text FROM log_chunk WHERE stream = $1 ORDER BY lease, offset",
                            stream);
        });
        std::string text;
        for (const store::Row& row : rows.value()) {
            for (const std::byte byte : row.blob(0)) {
                text += static_cast<char>(byte);
            }
        }
        return text;
    }

    World world_;
    JobId job_;
    LeaseRow lease_;
};

TEST_F(Logs, RepeatsAreCutAndGapsRefused) {
    EXPECT_EQ(append(0, "hello ").value(), 6);
    EXPECT_EQ(append(0, "hello ").value(), 6);
    EXPECT_EQ(append(3, "lo world").value(), 11);
    EXPECT_EQ(append(11, "").value(), 11);
    EXPECT_EQ(append(2, "llo").value(), 11);
    EXPECT_EQ(stored(), "hello world");
    EXPECT_EQ(append(12, "!").error().code, Errc::conflict);
    EXPECT_EQ(append(0, "oops", "stderr").value(), 4);
    EXPECT_EQ(stored("stderr"), "oops");
    const std::string binary("\0\xff\n", 3);
    EXPECT_EQ(append(11, binary).value(), 14);
    EXPECT_EQ(stored(), "hello world" + binary);
}

TEST_F(Logs, EachLeaseHasAStreamOfItsOwn) {
    EXPECT_EQ(append(0, "first ").value(), 6);
    world_.down("n1");
    EXPECT_EQ(append(6, "late ").value(), 11);  // revoked, but it was said
    world_.node("n1");
    const LeaseRow again = world_.granted(job_, {"n1"}).at(0);
    EXPECT_EQ(append_under(again.id, 0, "second").value(), 6);
    EXPECT_EQ(stored(), "first late second");
    world_.confirm_all("n1");
    EXPECT_EQ(append(11, "later").value(), 16);
    ASSERT_TRUE(world_.end(again, {.state = "completed"}));
    EXPECT_EQ(append_under(again.id, 6, "!").value(), 7);  // output may come after the end
}

TEST_F(Logs, OthersAreRefused) {
    EXPECT_EQ(append_under(LeaseId(99), 0, "x").error().code, Errc::stale_lease);
    EXPECT_EQ(append_under(LeaseId(0), 0, "x").error().code, Errc::stale_lease);
    EXPECT_EQ(append(0, "x", "stdin").error().code, Errc::invalid_argument);
    EXPECT_EQ(append(-1, "x").error().code, Errc::too_large);
    EXPECT_EQ(append(0, std::string(5 << 20, 'x')).error().code, Errc::too_large);
    EXPECT_EQ(world_.code([](store::Tx& tx) {
        return append_log(tx, TaskId(99), LeaseId(1), "stdout", 0, "x");
    }),
              Errc::not_found);
}

TEST_F(Logs, AreBoundedPerTask) {
    const std::string piece(4 << 20, 'x');
    std::int64_t offset = 0;
    for (int count = 0; count < 15; ++count) {
        offset = append(offset, piece).value();
    }
    EXPECT_EQ(append(0, piece + "", "stderr").value(), 4 << 20);  // 64 MiB in all
    EXPECT_EQ(append(offset, "more").value(), offset + 4);
    EXPECT_EQ(append(offset + 4, "and more").value(), offset + 12);
    const std::string text = stored();
    const std::string notice =
        "\n[holdfast: the output of this task is over 64 MiB; the rest is dropped]\n";
    EXPECT_EQ(text.size(), static_cast<std::size_t>(offset) + notice.size());
    EXPECT_TRUE(text.ends_with(notice));
    EXPECT_EQ(append(4 << 20, "dropped too", "stderr").value(), (4 << 20) + 11);
    EXPECT_EQ(stored("stderr").size(), std::size_t{4} << 20);
}

}  // namespace
}  // namespace holdfast::services
