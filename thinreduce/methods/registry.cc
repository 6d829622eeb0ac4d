#include "thinreduce/method/registry.h"

#include "thinreduce/methods/bf16.h"
#include "thinreduce/methods/demo/demo.h"
#include "thinreduce/methods/dqsg.h"
#include "thinreduce/methods/fft/fft.h"
#include "thinreduce/methods/fp32.h"
#include "thinreduce/methods/gradiveq/gradiveq.h"
#include "thinreduce/methods/ndqsg/ndqsg.h"
#include "thinreduce/methods/powersgd/powersgd.h"
#include "thinreduce/methods/qsgd.h"
#include "thinreduce/methods/sketch/sketch.h"
#include "thinreduce/methods/terngrad.h"
#include "thinreduce/methods/topk/topk.h"
#include "thinreduce/methods/variance/variance.h"

namespace thinreduce {

const std::vector<MethodInfo>& methods() {
  static const std::vector<MethodInfo> all{
      fp32_info(),     bf16_info(),     gradiveq_info(), fft_info(),  variance_info(),
      dqsg_info(),     ndqsg_info(),    sketch_info(),   topk_info(), qsgd_info(),
      terngrad_info(), powersgd_info(), demo_info(),
  };
  return all;
}

}  // namespace thinreduce
