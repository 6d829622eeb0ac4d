// The fields of a plan, by the names under which the command line and the Python package show them.
#pragma once

#include "thinreduce/plan/plan.h"

namespace thinreduce {

// Each function calls field(name, value) per field, in the order in which they are shown.

template <typename Field>
void for_fields(const PlanCandidate& candidate, const Field& field) {
  field("spec", candidate.spec);
  field("tried", candidate.tried);
  field("allowed", candidate.allowed);
  if (!candidate.tried) return;  // nothing was measured
  field("error", candidate.error);
  field("seconds", candidate.seconds);
  field("exposed_seconds", candidate.exposed);
  field("encode_seconds", candidate.encode);
  field("wire_seconds", candidate.wire);
  field("decode_seconds", candidate.decode);
  field("latency_seconds", candidate.latency);
  field("bytes_sent", candidate.bytes);
}

template <typename Field>
void for_fields(const PlanBucket& bucket, const Field& field) {
  field("id", bucket.id);
  field("elements", bucket.elements);
  field("ready_seconds", bucket.ready);
  field("spec", bucket.spec);
  field("reason", bucket.reason);
  field("candidates", bucket.candidates);
}

template <typename Field>
void for_fields(const Plan& plan, const Field& field) {
  field("link", plan.link.to_string());
  field("bytes_per_second", plan.link.bytes_per_second);
  field("latency_seconds", plan.link.latency.count());
  field("predicted_seconds", plan.predicted);
  field("fp32_seconds", plan.uncompressed);
  field("exposed_seconds", plan.exposed);
  field("measured_seconds", plan.measured);
  field("compute_seconds", plan.compute);
  field("planning_seconds", plan.planning);
  field("planning_fraction", plan.elapsed > 0 ? plan.planning / plan.elapsed : 0.0);
  field("trials", plan.trials);
  field("changes", plan.changes);
  field("links_followed", plan.followed);
  field("local_steps", plan.local_steps);
  field("reason", plan.sentence());
  field("buckets", plan.buckets);
}

}  // namespace thinreduce
