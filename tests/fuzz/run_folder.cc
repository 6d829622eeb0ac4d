// JSON files that the program reads: run folders of a report, results of bench codec, recorded
// gradients, and the folder of a run that is resumed.
#include <filesystem>
#include <fstream>

#include "apps/gradients.h"
#include "apps/report/page.h"
#include "apps/report/rate_distortion.h"
#include "apps/report/run.h"
#include "apps/report/summary.h"
#include "apps/train/options.h"
#include "apps/train/run_folder.h"
#include "tests/fuzz/fuzz.h"
#include "tests/temporary_folder.h"

namespace thinreduce::fuzz {
namespace {

namespace fs = std::filesystem;

// Returns a folder in memory, where the system has one.
const fs::path& folder() {
  const fs::path memory = "/dev/shm";
  static const Folder folder(fs::is_directory(memory) ? memory : fs::temp_directory_path());
  return folder.path;
}

void write(const char* name, std::string_view text) {
  std::ofstream(folder() / name, std::ios::binary) << text;
}

constexpr const char* kFiles[] = {"config.json", "steps.jsonl", "evaluations.jsonl",
                                  "summary.json"};

// The input has the texts of the files, each ended by a zero byte; a missing one is not written.
void write_files(std::string_view text) {
  for (const char* name : kFiles) {
    const auto end = std::min(text.find('\0'), text.size());
    if (end > 0) {
      write(name, text.substr(0, end));
    } else {
      fs::remove(folder() / name);
    }
    text.remove_prefix(std::min(text.size(), end + 1));
  }
}

void report(std::string_view text) {
  write_files(text);
  accepts([&] {
    const std::vector<apps::RunRecord> runs{apps::read_run(folder())};
    const auto rows = apps::summarise(runs);
    static_cast<void>(apps::to_cells(rows));
    static_cast<void>(apps::make_page(runs, rows, {}));
    static_cast<void>(
        apps::to_json(rows).dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  });
}

void codec(std::string_view text) {
  write("codec.json", text);
  accepts([&] { static_cast<void>(apps::read_codec_results(folder() / "codec.json")); });
}

void gradients(std::string_view text) {
  write("gradients.json", text);
  accepts([&] {
    const apps::RecordedGradients recorded(folder());
    static_cast<void>(recorded.elements());
  });
}

void resume(std::string_view text) {
  write_files(text);
  accepts([&] {
    train::TrainOptions options;
    train::read_config(folder(), options);
    train::check(options);
    train::settle(options, 2, 1000);
  });
  if (const auto json = text.find('\0'); json != std::string_view::npos) {
    write("checkpoint.json", text.substr(json + 1));
    accepts([&] { static_cast<void>(train::read_checkpoint(folder())); });
  }
}

// Returns brackets so deep that a function which follows them by recursion needs megabytes.
std::string nested(const std::string& open, const std::string& close) {
  constexpr std::size_t kDepth = 20'000;
  std::string text;
  for (std::size_t i = 0; i < kDepth; ++i) text += open;
  text += "1";
  for (std::size_t i = 0; i < kDepth; ++i) text += close;
  return text;
}

}  // namespace

void run(Input input) {
  const auto kind = input.value<std::uint8_t>() % 4;
  const std::string text(input.text());
  if (kind == 0) return report(text);
  if (kind == 1) return codec(text);
  if (kind == 2) return gradients(text);
  resume(text);
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  const auto add = [&](std::uint8_t kind, const std::string& text) {
    Bytes seed{static_cast<std::byte>(kind)};
    put_text(seed, text);
    all.push_back(seed);
  };
  const std::string zero(1, '\0');
  const std::string config =
      R"({"format":1,"method":"topk:density=0.01","data":"mnist","model":"lenet",)"
      R"("transport":"threads","link":"100mbit,5ms","optimizer":"sgd","schedule":"onecycle",)"
      R"("ranks":4,"batch":32,"steps":100,"seed":1,"parameters":44426,"learning_rate":0.1})";
  const std::string step =
      R"({"step":1,"loss":2.3,"seconds":0.1,"step_seconds":0.1,"compute_seconds":0.05,)"
      R"("stages":{"encode":0.01,"wire":0.02,"decode":0.01,"wait":0},"bytes_sent":1000,)"
      R"("payload_bytes":500,"statistics":{"owner":1,"sent":null}})";
  const std::string evaluation =
      R"({"step":1,"seconds":0.1,"bytes_sent_total":1000,"accuracy":0.5,"loss":1.5})";
  const std::string summary =
      R"({"format":1,"status":"finished","steps":1,"accuracy":0.5,"seconds":0.1,)"
      R"("bytes_sent_total":1000,"ratio":80,"identical":true})";
  add(0, config + zero + step + "\n" + step + "\n" + zero + evaluation + "\n" + zero + summary);
  add(0, config + zero + step + "\n{\"step\":2,\"lo" + zero + zero);
  add(0, config + zero + R"({"step":1,"statistics":)" + nested(R"({"a":)", "}") + "}\n" + zero);
  add(0, nested("[", "]") + zero);
  add(1, R"([{"method":"topk","ratio":12.5,"nmse":0.1,"measured_in_warmup":1}])");
  add(1, R"({"method":)" + nested("[", "]") + "}");
  add(2, R"({"format":1,"model":"lenet","data":"mnist","ranks":1,"buckets":[{"id":0,"elements":6,)"
         R"("tensors":[{"name":"w","shape":[2,3]}]}],"records":[{"file":)"
         R"("step-000001-rank-0-bucket-0.f32","step":1,"rank":0,"bucket":0}]})");
  add(2, R"({"format":)" + nested("[", "]") + "}");
  train::TrainOptions options;
  train::settle(options, 2, 1000);
  train::Json resumed = train::to_json(options);
  resumed["format"] = 1;
  resumed["ranks"] = 2;
  resumed["transport"] = "threads";
  resumed["link"] = "unlimited";
  add(3, resumed.dump() + zero +
             R"({"format":1,"step":5,"folder":"checkpoint-5","seconds":1.5,)"
             R"("bytes_sent_total":10,"payload_total":5,"evaluated":0,"accuracy":-1,)"
             R"("best_accuracy":-1,"loss":0.5,"model_checksum":"00ff"})");
  add(3, R"({"format":)" + nested("[", "]") + "}");
  return all;
}

}  // namespace thinreduce::fuzz
