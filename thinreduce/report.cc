#include "thinreduce/report.h"

#include <algorithm>

namespace thinreduce {

StageTimes& StageTimes::operator+=(const StageTimes& other) {
  encode += other.encode;
  wire += other.wire;
  decode += other.decode;
  wait += other.wait;
  return *this;
}

Report& Report::operator+=(const Report& other) {
  for (const auto& [name, value] : other.statistics) {
    const auto [own, fresh] = statistics.try_emplace(name, value);
    const auto weight = static_cast<double>(elements);
    const auto added = static_cast<double>(other.elements);
    if (!fresh && weight + added > 0) {
      own->second = (own->second * weight + value * added) / (weight + added);
    }
  }
  for (const auto& [rank, times] : other.outliers) {
    outliers[rank] = std::max(outliers[rank], times);
  }
  step = std::max(step, other.step);
  buckets += other.buckets;
  elements += other.elements;
  payload_bytes += other.payload_bytes;
  bytes_sent += other.bytes_sent;
  bytes_received += other.bytes_received;
  stages += other.stages;
  queued += other.queued;
  total += other.total;
  return *this;
}

}  // namespace thinreduce
