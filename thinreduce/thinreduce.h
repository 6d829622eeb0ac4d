// thinreduce: the mean of every rank's gradient at every rank, with far fewer bytes on the wire.
//
//   engine/session.h        Session: reduces buckets on threads of its own
//   method/layout.h         BucketLayout, Tensor: what a bucket holds
//   report.h                Report, StageTimes: bytes and seconds
//   method/describe.h       the methods, their options, and the meaning of a spec
//   engine/local_steps.h    LocalSteps: exchanges every H local steps, with an outer step
//   transport/*.h           Transport, connect_threads(), connect_gloo(), connect_mpi(),
//                           throttle(), Secret, authenticate()
//   plan/plan.h             Plan: what `auto` chose, and why
//   error.h                 Error and its codes
//   simd.h, version.h       the instruction set in use, the version
//   export.h                THINREDUCE_EXPORT, which marks the functions that the library exports
//
// These headers are all there are: the rest of the library is internal. A transport of your own
// derives from Transport.
#pragma once

#include "thinreduce/engine/local_steps.h"
#include "thinreduce/engine/session.h"
#include "thinreduce/error.h"
#include "thinreduce/method/describe.h"
#include "thinreduce/method/layout.h"
#include "thinreduce/report.h"
#include "thinreduce/simd.h"
#include "thinreduce/transport/authenticate.h"
#include "thinreduce/transport/gloo/gloo.h"
#include "thinreduce/transport/mpi/mpi.h"
#include "thinreduce/transport/throttle.h"
#include "thinreduce/transport/transport.h"
#include "thinreduce/version.h"
