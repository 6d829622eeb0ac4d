#include "thinreduce/engine/whole_file.h"

#include <gtest/gtest.h>

#include "tests/ranks.h"
#include "tests/temporary_folder.h"

namespace thinreduce::whole_file_test {
namespace {

namespace fs = std::filesystem;

TEST(WholeFile, IsReplaced) {
  const Folder folder;
  for (const std::size_t size : {0, 1, 70'000, 3}) {
    const std::vector<std::byte> bytes(size, std::byte{7});
    write_file(folder.path / "file", bytes);
    EXPECT_EQ(read_file(folder.path / "file"), bytes);
  }
  EXPECT_FALSE(fs::exists(folder.path / "file.partial"));
}

TEST(WholeFile, AFailedWriteKeepsWhatWasThere) {
  const Folder folder;
  const fs::path taken = folder.path / "taken";
  fs::create_directories(taken / "child");
  const auto text =
      thrown_text(ErrorCode::unavailable, [&] { write_file(taken, std::vector<std::byte>(1000)); });
  EXPECT_NE(text.find(taken.string()), std::string::npos) << text;
  EXPECT_TRUE(fs::exists(taken / "child"));
  EXPECT_FALSE(fs::exists(folder.path / "taken.partial"));
}

TEST(WholeFile, ErrorsNameTheFileAndTheReason) {
  const Folder folder;
  const auto missing =
      thrown_text(ErrorCode::unavailable, [&] { (void)read_file(folder.path / "missing"); });
  EXPECT_NE(missing.find("missing: No such file"), std::string::npos) << missing;
  const auto directory = thrown_text(ErrorCode::unavailable, [&] { (void)read_file(folder.path); });
  EXPECT_NE(directory.find("Is a directory"), std::string::npos) << directory;
}

}  // namespace
}  // namespace thinreduce::whole_file_test
