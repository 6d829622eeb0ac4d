#include "thinreduce/methods/sketch/sketch.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

#include "thinreduce/collective/broadcast.h"
#include "thinreduce/collective/shared_loops.h"
#include "thinreduce/ensure.h"
#include "thinreduce/kernels/floats.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/method/limits.h"
#include "thinreduce/methods/sketch/count_sketch.h"
#include "thinreduce/methods/sketch/momentum.h"
#include "thinreduce/methods/sketch/nomination.h"
#include "thinreduce/methods/sketch/plain_momentum.h"
#include "thinreduce/methods/sketch/rounds.h"
#include "thinreduce/wire/mix.h"

namespace thinreduce {
namespace {

struct SketchSetup {
  SketchRoundsOptions rounds;
  std::size_t rows = 5;
  std::size_t columns = 0;
  std::size_t nominees = 0;
  float momentum = 0;
  std::uint64_t seed = 0;
};

class Sketch final : public Method {
 public:
  Sketch(const BucketLayout& layout, const SketchSetup& setup)
      : elements_(layout.elements),
        setup_(setup),
        sketch_({.rows = setup.rows, .columns = setup.columns, .seed = setup.seed}),
        rounds_(setup.rounds),
        residual_(elements_),
        velocity_(setup.momentum > 0 ? elements_ : 0),
        plain_(layout, setup.momentum) {
    // With room for all of them, all are candidates and there is nothing to estimate.
    std::size_t compressed = 0;
    for_compressed(layout, [&](std::size_t /*first*/, std::size_t count) { compressed += count; });
    masks_ = setup.momentum > 0 && setup.rounds.k < compressed;
    if (setup.rounds.max_candidates + setup.nominees >= compressed) {
      for_compressed(layout, [&](std::size_t first, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) {
          everything_.push_back(static_cast<std::uint32_t>(first + i));
        }
      });
    }
  }

  void reduce(const Bucket& bucket, Exchange& exchange) override {
    ensure(bucket.values.size() == elements_ && residual_.size() == elements_,
           "sketch: the bucket must keep its size", bucket.values.size(), residual_.size(),
           elements_);
    if (elements_ == 0) return;
    exchange.timed(Stage::encode, [&] { take_in(bucket.values, exchange); });
    try {
      send(bucket, exchange);
    } catch (...) {
      rounds_.abandon();
      throw;
    }
  }

  void add_residual(std::span<float> values) override {
    settle_all();
    if (!residual_.empty()) kernels::add(values, residual_);
  }

  void finish_uncompressed(std::span<float> means) override { plain_.apply(means); }

  void state(Archive& archive) override {
    settle_all();
    if (elements_ > 0) archive.summed("residual", residual_);
    if (elements_ > 0 && setup_.momentum > 0) archive.summed("momentum", velocity_);
    plain_.state(archive);
  }

 private:
  // The gradient is in the residual.
  void send(const Bucket& bucket, Exchange& exchange) {
    rounds_.begin(exchange, std::ranges::max(largest_));
    const auto candidates = everything_.empty() ? find_candidates(bucket, exchange)
                                                : std::span<const std::uint32_t>(everything_);
    const ExactSums largest = rounds_.find_largest(exchange, candidates, residual_);
    exchange.timed(Stage::decode,
                   [&] { apply(largest, bucket.values, exchange.size(), exchange.workers); });
    exchange.statistics["sent"] =
        static_cast<double>(largest.indices.size()) / static_cast<double>(elements_);
  }

  // Elements that are worked on together, in the nearest caches.
  static constexpr std::size_t kRun = 16384;

  [[nodiscard]] bool nominates() const { return setup_.nominees > 0 && everything_.empty(); }

  // Adds the gradient to momentum and residual, and looks for the largest residuals among the
  // elements that this rank may name. One rank may name all, so it does both in one pass over
  // memory.
  void take_in(std::span<const float> gradient, const Exchange& exchange) {
    const Workers workers = exchange.workers;
    std::ranges::fill(largest_, 0.0f);
    try {
      largest_.resize(workers.threads());
    } catch (...) {
      take_in_run({0, elements_}, gradient, 0);
      owed_ = {};
      throw;
    }
    if (nominates() && exchange.size() == 1) return take_in_and_nominate(gradient, workers);
    workers.for_runs(elements_, kRun,
                     [&](std::size_t first, std::size_t count, std::size_t thread) {
                       take_in_run({first, first + count}, gradient, thread);
                     });
    owed_ = {};
    if (nominates()) choose_places(exchange);
  }
  void take_in_and_nominate(std::span<const float> gradient, Workers workers) {
    const TopSelector::Runs runs{
        .elements = elements_,
        .value_at = [&](std::size_t i) { return settled(i) + gradient[i]; },
        .values_of =
            [&](Range run, std::size_t thread, bool again) {
              if (!again) take_in_run(run, gradient, thread);
              return std::span<const float>(part(std::span(residual_), run));
            }};
    try {
      places_ = selector_.select(runs, setup_.nominees, workers).indices;
    } catch (...) {
      owed_ = {};  // the selector has let all runs take their gradient in
      throw;
    }
    owed_ = {};
  }
  // Chooses the largest residuals among the elements that this rank may name in this step.
  void choose_places(const Exchange& exchange) {
    turns_.emplace(elements_, setup_.nominees, exchange.size(), exchange.id().step);
    const int rank = exchange.rank();
    chosen_from_.resize(std::max(chosen_from_.size(), exchange.workers.threads()));
    const TopSelector::Runs runs{
        .elements = turns_->places(rank),
        .value_at = [&](std::size_t place) { return residual_[turns_->element(rank, place)]; },
        .values_of =
            [&](Range places, std::size_t thread, bool /*again*/) {
              std::vector<float>& values = chosen_from_[thread];
              values.resize(places.size());
              turns_->for_runs(
                  rank, places, [&](std::size_t place, std::size_t element, std::size_t count) {
                    std::copy_n(&residual_[element], count, &values[place - places.begin]);
                  });
              return std::span<const float>(values);
            }};
    places_ = selector_.select(runs, turns_->max_named(rank), exchange.workers).indices;
  }
  void take_in_run(Range run, std::span<const float> gradient, std::size_t thread) {
    settle(run);
    const auto residual = part(std::span(residual_), run);
    if (setup_.momentum == 0) {
      kernels::add(residual, part(gradient, run));
    } else {
      kernels::take_in({part(std::span(velocity_), run), residual}, part(gradient, run),
                       setup_.momentum);
    }
    largest_[thread] = std::max(largest_[thread], largest_finite(residual));
  }

  // The values that a step has sent leave the residual when the next step takes its gradient in, or
  // the residual is read: that saves a pass over memory. The residual of the sent elements keeps
  // only the rounding error, and their momentum restarts from zero. Momentum is kept if all
  // elements are sent in every step, because it is never stale then.
  void settle(Range run) {
    const auto sent = elements_in(run, owed_.indices);
    auto i = static_cast<std::size_t>(sent.data() - owed_.indices.data());
    for (const std::size_t element : sent) {
      residual_[element] -= owed_.given[i++];
      if (masks_) velocity_[element] = 0;
    }
  }
  void settle_all() {
    settle({0, elements_});
    owed_ = {};
  }
  // Returns what an element's residual will be.
  [[nodiscard]] float settled(std::size_t element) const {
    const auto sent = elements_in({element, element + 1}, owed_.indices);
    if (sent.empty()) return residual_[element];
    const auto i = static_cast<std::size_t>(sent.data() - owed_.indices.data());
    return residual_[element] - owed_.given[i];
  }

  // Returns the nominees of all ranks and the candidates that the summed sketch shows among the
  // rest.
  std::span<const std::uint32_t> find_candidates(const Bucket& bucket, Exchange& exchange) {
    if (nominates()) nominate(exchange);
    rounds_.begin_nominees(exchange, nominees_, residual_);
    exchange.timed(Stage::encode, [&] { sketch_the_rest(exchange.id().step, exchange.workers); });
    const auto found = rounds_.find_candidates(exchange, {sketch_, bucket.layout, nominees_});
    if (nominees_.empty()) return found;
    exchange.timed(Stage::decode, [&] {
      if (setup_.rounds.collective == SketchCollective::root) {
        // Another rank's list, which may have nominees in it.
        candidates_.clear();
        std::ranges::set_union(found, nominees_, std::back_inserter(candidates_));
      } else {
        join(found, exchange.workers);
      }
    });
    return candidates_;
  }
  // Merges the candidates that the sketch has shown, none of which is a nominee, and the nominees.
  void join(std::span<const std::uint32_t> found, Workers workers) {
    candidates_.resize(found.size() + nominees_.size());
    constexpr std::size_t kMergedElements = std::size_t{1} << 20;
    workers.for_runs(
        elements_, kMergedElements, [&](std::size_t first, std::size_t count, std::size_t) {
          const Range run{first, first + count};
          const auto shown = elements_in(run, found);
          const auto named = elements_in(run, nominees_);
          const std::size_t before = static_cast<std::size_t>(shown.data() - found.data()) +
                                     static_cast<std::size_t>(named.data() - nominees_.data());
          std::ranges::merge(shown, named,
                             candidates_.begin() + static_cast<std::ptrdiff_t>(before));
        });
  }

  // Tells the others which elements this rank names, and learns which ones they name.
  void nominate(Exchange& exchange) {
    const auto world = static_cast<std::size_t>(exchange.size());
    const auto own = static_cast<std::size_t>(exchange.rank());
    if (world == 1) turns_.emplace(elements_, setup_.nominees, 1, 0);
    messages_.resize(world);
    named_.resize(world);
    std::vector<std::span<std::byte>> messages;
    for (std::size_t r = 0; r < world; ++r) {
      const int rank = static_cast<int>(r);
      messages_[r].resize(nomination_bytes(turns_->places(rank), turns_->max_named(rank)));
      messages.emplace_back(messages_[r]);
    }
    exchange.timed(Stage::encode,
                   [&] { write_nomination(places_, messages_[own], exchange.workers); });
    broadcast_all(exchange, messages);
    exchange.timed(Stage::decode, [&] {
      if (world == 1) return copy_names(exchange.workers);
      exchange.workers.for_blocks(world, [&](std::size_t r, std::size_t /*thread*/) {
        const int rank = static_cast<int>(r);
        read_nomination(messages_[r], rank, turns_->places(rank), named_[r]);
      });
      turns_->join(named_, nominees_);
    });
  }
  void copy_names(Workers workers) {
    nominees_.resize(places_.size());
    for_floats(workers, places_.size(), [&](std::size_t first, std::size_t count) {
      std::ranges::copy(places_.subspan(first, count), &nominees_[first]);
    });
  }

  // Leaves out the nominees, which would only be noise to the others. Every step uses new hash
  // functions, so that two elements that collide in one step do not collide in all.
  void sketch_the_rest(std::uint64_t step, Workers workers) {
    sketch_.reset(mix(setup_.seed + mix(step)));
    if (nominees_.empty()) return sketch_.accumulate(residual_, 0, workers);
    rest_.resize(std::max(rest_.size(), workers.threads()));
    const auto rest_of = [&](Range run, std::size_t thread) {
      const auto own = part(std::span<const float>(residual_), run);
      rest_[thread].assign(own.begin(), own.end());
      clear_named(nominees_, run, rest_[thread]);
      return std::span<const float>(rest_[thread]);
    };
    sketch_.accumulate(elements_, rest_of, workers);
  }

  // Writes the mean of the selected elements.
  void apply(const ExactSums& largest, std::span<float> values, int world, Workers workers) {
    const float share = 1.0f / static_cast<float>(world);
    workers.for_runs(elements_, kRun, [&](std::size_t first, std::size_t count, std::size_t) {
      std::fill_n(&values[first], count, 0.0f);
      const auto selected = elements_in({first, first + count}, largest.indices);
      auto i = static_cast<std::size_t>(selected.data() - largest.indices.data());
      for (const std::size_t element : selected) values[element] = largest.sums[i++] * share;
    });
    owed_ = largest;
  }

  std::size_t elements_;
  SketchSetup setup_;
  CountSketch sketch_;
  SketchRounds rounds_;
  std::vector<float> residual_;
  std::vector<float> velocity_;
  ExactSums owed_;  // what the last step has sent and the residual still has
  PlainMomentum plain_;
  bool masks_ = false;
  TopSelector selector_;
  std::optional<NominationTurns> turns_;           // of this step
  std::span<const std::uint32_t> places_;          // that this rank names; in the selector's memory
  std::vector<std::vector<float>> chosen_from_;    // residuals of a run of places, by thread
  std::vector<std::vector<std::byte>> messages_;   // nominations, by rank
  std::vector<std::vector<std::uint32_t>> named_;  // places in them
  std::vector<float> largest_{0};                  // residual of this step, by thread
  std::vector<std::uint32_t> nominees_;
  std::vector<std::vector<float>> rest_;  // a run of the residual without nominees, by thread
  std::vector<std::uint32_t> candidates_;
  std::vector<std::uint32_t> everything_;  // all elements, or empty if candidates must be found
};

SketchSetup set_up(const Options& options, const MethodSetup& setup) {
  std::size_t compressed = 0;
  for_compressed(setup.layout, [&](std::size_t, std::size_t count) { compressed += count; });
  SketchSetup made;
  std::size_t k = 0;
  if (options.text("k") == "auto") {
    const double wanted = options.number("density") * static_cast<double>(compressed);
    k = std::max(static_cast<std::size_t>(options.integer("min_values")),
                 static_cast<std::size_t>(std::round(wanted)));
  } else {
    k = static_cast<std::size_t>(options.integer("k"));
  }
  k = std::min(std::max<std::size_t>(k, 1), compressed);
  made.rounds.k = k;
  const auto multiple_of_k = [&](const char* option) {
    const double exact = options.number(option) * static_cast<double>(k);
    return std::min(compressed, static_cast<std::size_t>(std::ceil(exact)));
  };
  made.rounds.max_candidates = multiple_of_k("candidates");
  made.nominees = multiple_of_k("nominees");
  const bool multiples = options.text("values") == "i16" && setup.world <= SharedQuantum::kMaxRanks;
  made.rounds.values = multiples ? SketchValues::i16 : SketchValues::f32;
  const std::size_t width = multiples ? sizeof(std::int16_t) : sizeof(float);
  // The cost is a value and as many bytes of sketch per candidate, a value and a byte per nominee.
  // If that is no less than all values, send them all.
  if (options.text("k") == "auto" &&
      2 * width * made.rounds.max_candidates + (width + 1) * made.nominees >= width * compressed) {
    made.rounds.k = made.rounds.max_candidates = compressed;
  }
  const bool halves = options.text("cells") == "f16";
  made.rounds.cells = halves ? SketchCells::f16 : SketchCells::f32;
  const std::string& collective = options.text("collective");
  made.rounds.collective = collective == "root"   ? SketchCollective::root
                           : collective == "ring" ? SketchCollective::ring
                                                  : SketchCollective::automatic;
  made.rows = static_cast<std::size_t>(options.integer("rows"));
  if (options.text("columns") == "auto") {
    // As many bytes in the sketch as in the exact values.
    const std::size_t cells = made.rounds.max_candidates * width / (halves ? 2 : 4);
    made.columns = std::max<std::size_t>(1, cells / made.rows);
  } else {
    made.columns = static_cast<std::size_t>(options.integer("columns"));
  }
  made.momentum = static_cast<float>(options.number("momentum"));
  made.seed = mix(setup.seed + mix(setup.layout.id));
  return made;
}

}  // namespace

MethodInfo sketch_info() {
  MethodInfo info;
  info.name = "sketch";
  info.wire_id = 10;
  info.algebra = Algebra::sum;
  info.summary =
      "Sums one Count Sketch per rank to find the largest elements of the summed gradient; a "
      "second "
      "round sums the values of these elements only.";
  info.paper = "Ivkin et al. 2019, Communication-efficient Distributed SGD with Sketching";
  info.update = [](const Options& options) {
    const double momentum = options.number("momentum");
    return momentum > 0 ? std::optional<Update>({.momentum = momentum, .without = "momentum=0"})
                        : std::nullopt;
  };
  info.options = {
      OptionInfo::integer("k", 0, 1, 4294967295,
                          "Max number of elements per step and bucket whose mean is sent; the "
                          "others wait in the residual. auto: the larger of density * elements "
                          "and min_values.")
          .or_else("auto"),
      OptionInfo::number(
          "density", 0.12, 1e-6, 1,
          "Fraction of the bucket's elements whose mean is sent per step, but at least "
          "min_values elements; ignored when k is given."),
      OptionInfo::integer(
          "min_values", 65536, 1, 4294967295,
          "Min number of elements whose mean is sent per step and bucket when k=auto.")
          .formerly("least"),
      OptionInfo::choice("rows", "5", {"1", "3", "5"},
                         "Rows of the sketch: independent hash tables, whose median estimates an "
                         "element."),
      OptionInfo::integer("columns", 0, 16, 268435456,
                          "Columns of the sketch (cells per row), rounded up to a multiple of 16. "
                          "auto: the sketch takes as many bytes as the candidates' values.")
          .or_else("auto"),
      OptionInfo::number("candidates", 0.1, 0.01, 1000,
                         "Elements that the summed sketch proposes for the second round, as a "
                         "multiple of k."),
      OptionInfo::number(
          "nominees", 0.9, 0, 1000,
          "Elements that all ranks together propose for the second round, as a "
          "multiple of k; the elements are divided among the ranks, and each rank proposes the "
          "largest of its own. "
          "0: none, as in the paper."),
      OptionInfo::number("momentum", 0, 0, 0.9999,
                         "Momentum applied inside the method, as in the paper; the optimizer's "
                         "momentum must then be 0. 0: momentum is left to the optimizer.")
          .for_paper(),
      OptionInfo::choice("cells", "f16", {"f32", "f16"},
                         "Number format of the sketch on the wire: f32, or f16 with a scale per "
                         "message."),
      OptionInfo::choice("values", "i16", {"f32", "i16"},
                         "Number format of the second round on the wire: f32, or i16: 16-bit "
                         "integer multiples of a step size that is the same on all ranks."),
      OptionInfo::choice(
          "collective", "auto", {"auto", "ring", "root"},
          "How values, and cells in f32, are summed. auto: in the way that is fastest on the link, "
          "with the same bits. ring: in a ring. root: at rank 0, as in the paper. Cells in f16 are "
          "summed by owners, or at rank 0 with collective=root.")
          .formerly("travel")
          .for_paper(),
  };
  info.presets = {{"paper", "nominees=0,density=0.0125,candidates=2,values=f32,momentum=0.9",
                   "All candidates come from the sketch; the method applies momentum itself."}};
  info.make = [](const Options& options, const MethodSetup& setup) {
    require_32bit_indices("sketch", setup.layout);
    return std::make_unique<Sketch>(setup.layout, set_up(options, setup));
  };
  return info;
}

}  // namespace thinreduce
