#include "apps/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include "apps/gather_values.h"
#include "apps/gradients.h"
#include "apps/plan_json.h"
#include "apps/program.h"
#include "apps/terminal.h"
#include "apps/train/checkpoints.h"
#include "apps/train/replica.h"
#include "apps/train/run_description.h"
#include "apps/train/run_folder.h"
#include "apps/train/schedule.h"
#include "apps/train/start_run.h"
#include "apps/train/world_change.h"
#include "thinreduce/method/spec.h"

namespace thinreduce::train {
namespace {

namespace fs = std::filesystem;

// Figures of a step that differ between ranks.
struct RankFigures {
  std::uint64_t bytes_sent = 0;
  std::uint64_t payload_bytes = 0;
  StageTimes stages;
};

std::string show_time(double seconds) {
  const auto whole = std::llround(seconds);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

class Trainer {
 public:
  Trainer(const TrainOptions& options, const Dataset& data,
          const std::shared_ptr<Transport>& transport, ElasticPeers elastic = {})
      : options_(options),
        elastic_(std::move(elastic)),
        transport_(transport),
        leads_(transport->rank() == 0) {
    const bool joins = elastic_.rank != nullptr && elastic_.rank->joins();
    // A rank that joins must have the settings of the first world.
    settle(options_, joins ? apps::ranks_of(options_.launch) : transport->size(),
           training_samples(options_, data));
    schedule_ = {
        .kind = options_.schedule, .peak = *options_.learning_rate, .steps = *options_.steps};
    if (joins) {
      replica_ = std::make_unique<Replica>(options_, data, std::move(connect_threads(1)[0]));
      change_world(transport);
      return;
    }
    compare_settings(options_, *transport_);
    OpenedRun opened = open_run(options_, *transport_);
    out_ = std::move(opened.path);
    folder_ = std::move(opened.folder);
    state_ = opened.state;
    step_seconds_ = std::move(opened.step_seconds);
    replica_ = std::make_unique<Replica>(options_, data, transport);
    if (options_.resume.empty()) {
      replica_->check_replicas(0);
      if (leads_) folder_->write_config(run_config(view()));
    } else {
      load_run(options_, out_, *transport_, *replica_, state_);
      // A state that one rank can't load must leave the run as it was.
      apps::barrier(*transport_, options_.launch.timeout);
      if (leads_) folder_->continue_after(state_.step);
    }
    writer_ = start_recording(options_, *replica_, *transport_);
    first_step_ = state_.step;
  }

  Outcome run() {
    if (leads_ && !options_.json) announce_run(view(), state_);
    progress_.emplace(Spec::parse(options_.method).name(), *options_.steps,
                      options_.json || !leads_);
    progress_->skip(state_.step);
    while (!run_in_one_world()) {
    }
    progress_.reset();
    if (left_) return {};
    const bool interrupted = state_.step < *options_.steps;
    Outcome outcome{.interrupted = interrupted, .summary = {}};
    if (leads_) {
      outcome.summary =
          run_summary(view(), state_, apps::median(step_seconds_), folder_->mean_statistics());
      if (elastic_.rank != nullptr) outcome.summary["changes"] = changes_;
      if (const Plan plan = replica_->session().plan(); plan.active) {
        outcome.summary["plan"] = apps::to_json(plan);
      }
      folder_->write_summary(outcome.summary);
    }
    return outcome;
  }

 private:
  static constexpr std::size_t kAllSamples = static_cast<std::size_t>(-1);

  // Trains and saves. Returns false if that was interrupted by the loss of a rank, and the others
  // have formed a new world.
  bool run_in_one_world() {
    try {
      bool stop = options_.stop_after && state_.step >= *options_.stop_after;
      while (state_.step < *options_.steps && !stop) stop = step();
      if (left_) return true;
      // The last step is always checked and saved.
      write_steps();
      replica_->check_replicas(state_.step);
      const bool interrupted = state_.step < *options_.steps;
      if (!interrupted && state_.evaluated != state_.step) evaluate(kAllSamples);
      save();
      return true;
    } catch (const Error& error) {
      if (elastic_.rank == nullptr || !is_loss(error)) throw apps::FailedRun(error);
      change_world(nullptr);
      return false;
    }
  }

  // Goes on with all ranks that are alive, over `transport` if they have met already.
  void change_world(std::shared_ptr<Transport> transport) {
    const auto started = Clock::now();
    const Reconfiguration change =
        train::change_world(*elastic_.rank, *replica_, transport,
                            {.state = state_, .first_step = first_step_, .folder = out_});
    transport_ = std::move(transport);
    lead();
    changes_.push_back({{"step", state_.step},
                        {"ranks", transport_->size()},
                        {"seconds", Seconds(Clock::now() - started).count()},
                        {"text", change.text}});
    if (leads_ && !options_.json) fmt::print("{}\n", change.text);
  }

  // Rank 0 of a new world writes the run folder from now on.
  void lead() {
    own_figures_.clear();
    lines_.clear();
    leads_ = transport_->rank() == 0;
    if (!leads_) return;
    if (!folder_) {
      folder_ = RunFolder::resume(out_);
      folder_->continue_after(state_.step);
      step_seconds_ = folder_->step_seconds();
    }
    folder_->write_config(run_config(view()));
  }

  // Runs one step and the checks, evaluations and saves due after it. Returns true when the run
  // must stop.
  bool step() {
    const std::uint64_t number = state_.step + 1;
    const bool record = writer_ && number % options_.save_every == 0;
    // Rounded to float, so that differences between math libraries do not reach the parameters.
    const auto rate = static_cast<double>(static_cast<float>(schedule_.at(state_.step)));
    const bool asked_to_leave = elastic_.leaves && elastic_.leaves();
    const bool leave = asked_to_leave && transport_->size() > 1;
    const StepResult result =
        replica_->step({.step = state_.step,
                        .learning_rate = rate,
                        .stop = options_.interrupted() || (asked_to_leave && !leave),
                        .save = wants_checkpoint(),
                        .meet = elastic_.rank && elastic_.rank->is_called(),
                        .leave = leave,
                        .last = number == *options_.steps,
                        .record = record ? &*writer_ : nullptr});
    state_.step = number;
    state_.seconds += result.step_seconds;
    own_figures_.push_back({result.bytes_sent, result.report.payload_bytes, result.report.stages});
    if (leads_) {
      step_seconds_.push_back(result.step_seconds);
      lines_.push_back({{"step", number},
                        {"epoch", (number - 1) / replica_->steps_per_epoch()},
                        {"loss", result.loss},
                        {"learning_rate", rate},
                        {"seconds", state_.seconds},
                        {"step_seconds", result.step_seconds},
                        {"compute_seconds", result.compute_seconds},
                        {"exposed_seconds", result.exposed_seconds},
                        {"statistics", result.report.statistics}});
    }
    show_progress(result);
    if (!result.report.outliers.empty() && leads_) show_outliers(result.report);
    if (elastic_.rank != nullptr) write_steps();
    const bool stop = result.stop || number == options_.stop_after;
    const bool last = number == *options_.steps;
    const bool evaluation = !last && number % *options_.evaluate_every == 0;
    // A run that ends here saves itself.
    const bool checkpoint =
        !last && !stop &&
        (result.save || (options_.checkpoint_every ? number % *options_.checkpoint_every == 0
                                                   : number % replica_->steps_per_epoch() == 0));
    if (record) {
      // Rank 0 lists the step after all ranks have written it.
      apps::barrier(*transport_, options_.launch.timeout);
      writer_->add_step(number);
    }
    if (evaluation || checkpoint || stop || number % options_.check_every == 0) write_steps();
    if (number % options_.check_every == 0) replica_->check_replicas(number);
    if (evaluation) evaluate(*options_.evaluate_samples);
    if (last) evaluate(kAllSamples);
    if (checkpoint) save();
    if (stop || last) return stop;  // with all ranks that are there
    // Ranks that leave take part in what is due after this step, and those that join do not.
    if (leave) return left_ = true;
    if (result.meet) change_world(nullptr);
    return false;
  }

  // Rank 0's clock decides for all ranks.
  [[nodiscard]] bool wants_checkpoint() const {
    return leads_ && !options_.checkpoint_every &&
           Seconds(Clock::now() - saved_at_).count() > kCheckpointSeconds;
  }

  void show_progress(const StepResult& result) {
    if (!progress_->shown()) return progress_->advance();
    const double left = state_.seconds / static_cast<double>(state_.step) *
                        static_cast<double>(*options_.steps - state_.step);
    std::string tested;
    if (state_.evaluated > 0) tested = ", " + show_result();
    progress_->advance(fmt::format(
        "loss {:.3f}{}, {} sent, {} left", result.loss, tested,
        apps::show_bytes(static_cast<double>(state_.bytes_sent_total + unwritten_bytes())),
        show_time(left)));
  }

  [[nodiscard]] std::uint64_t unwritten_bytes() const {
    std::uint64_t sum = 0;
    for (const RankFigures& figures : own_figures_) sum += figures.bytes_sent;
    return sum;
  }

  void show_outliers(const Report& report) const {
    for (const auto& [rank, times] : report.outliers) {
      fmt::print(stderr,
                 "thinreduce: step {}: the gradient of rank {} has {:.3g} times the median "
                 "norm\n",
                 state_.step, rank, times);
    }
  }

  // Gathers all ranks' figures of the steps since the last call and writes their lines. Ranks that
  // may be gone are not asked.
  void write_steps() {
    std::vector<std::vector<RankFigures>> all = {own_figures_};
    if (elastic_.rank == nullptr) {
      all = apps::gather_lists(*transport_, options_.launch.timeout,
                               std::span<const RankFigures>(own_figures_));
    }
    for (std::size_t i = 0; i < own_figures_.size(); ++i) {
      RankFigures largest;
      StageTimes stages;
      for (const auto& rank : all) {
        if (rank[i].bytes_sent >= largest.bytes_sent) largest = rank[i];
        stages += rank[i].stages;
      }
      state_.bytes_sent_total += largest.bytes_sent;
      state_.payload_total += largest.payload_bytes;
      if (!leads_) continue;
      const double part = 1.0 / static_cast<double>(all.size());
      Json& line = lines_[i];
      line["stages"] = {{"encode", stages.encode * part},
                        {"wire", stages.wire * part},
                        {"decode", stages.decode * part},
                        {"wait", stages.wait * part}};
      line["bytes_sent"] = largest.bytes_sent;
      line["payload_bytes"] = largest.payload_bytes;
      folder_->add_step(line);
    }
    own_figures_.clear();
    lines_.clear();
    if (leads_) folder_->flush();
  }

  void save() {
    save_run(options_, out_, *transport_, *replica_, state_);
    saved_at_ = Clock::now();
  }

  void evaluate(std::size_t samples) {
    if (!own_figures_.empty()) write_steps();
    const Evaluation result = replica_->evaluate(samples);
    state_.evaluated = state_.step;
    state_.accuracy = result.accuracy.value_or(kNoAccuracy);
    state_.loss = result.loss;
    state_.best_accuracy = std::max(state_.best_accuracy, state_.accuracy);
    if (!leads_) return;
    folder_->add_evaluation({{"step", state_.step},
                             {"epoch", (state_.step - 1) / replica_->steps_per_epoch()},
                             {"seconds", state_.seconds},
                             {"bytes_sent_total", state_.bytes_sent_total},
                             {"accuracy", accuracy_to_json(state_.accuracy)},
                             {"loss", result.loss},
                             {"samples", result.samples}});
    folder_->flush();
    if (progress_->shown() || options_.json) return;
    fmt::print("step {}/{}  {}  {}  {} sent\n", state_.step, *options_.steps, show_result(),
               apps::show_seconds(state_.seconds),
               apps::show_bytes(static_cast<double>(state_.bytes_sent_total)));
    std::fflush(stdout);
  }

  // Returns the last evaluation as text.
  [[nodiscard]] std::string show_result() const {
    if (state_.accuracy < 0) return fmt::format("test loss {:.4f}", state_.loss);
    return fmt::format("accuracy {:.2f} %, test loss {:.4f}", state_.accuracy * 100, state_.loss);
  }

  [[nodiscard]] RunView view() const {
    return {.options = options_, .replica = *replica_, .ranks = transport_->size(), .folder = out_};
  }

  TrainOptions options_;
  ElasticPeers elastic_;
  std::shared_ptr<Transport> transport_;
  bool leads_;                    // rank 0
  bool left_ = false;             // this rank has left the others
  std::uint64_t first_step_ = 0;  // number of steps before those of the session
  Json changes_ = Json::array();  // every change of the world that this rank took part in
  Schedule schedule_;
  fs::path out_;
  std::optional<RunFolder> folder_;  // rank 0
  std::unique_ptr<Replica> replica_;
  std::optional<apps::GradientWriter> writer_;
  std::optional<apps::Progress> progress_;
  Checkpoint state_;
  std::vector<RankFigures> own_figures_;  // of the steps that are not written yet
  std::vector<Json> lines_;               // of the same steps, on rank 0
  std::vector<double> step_seconds_;      // of the whole run, on rank 0
  Clock::time_point saved_at_ = Clock::now();
};

}  // namespace

Outcome train(const TrainOptions& options, const Dataset& data,
              const std::shared_ptr<Transport>& transport) {
  return Trainer(options, data, transport).run();
}

Outcome train_elastic(const TrainOptions& options, const Dataset& data, apps::ElasticRank& rank,
                      const std::function<bool()>& leaves) {
  const auto transport = rank.meet();
  return Trainer(options, data, transport, {&rank, leaves}).run();
}

}  // namespace thinreduce::train
