#loc = loc(unknown)
module @jit_f {
  func.func public @main(%arg0: tensor<2x3x4x5xf32> loc("x"), %arg1: tensor<5x2x6x4xf32> loc(unknown), %arg2: tensor<6x5xf32>) -> (tensor<2x4x3x6xf32> {jax.result_info = "result[0]"}, tensor<2x3x4x6xf32>, tensor<f32>, tensor<5x5xf32>, tensor<6x3xf32>) {
    %0 = stablehlo.dot_general %arg0, %arg1, batching_dims = [0, 2] x [1, 3], contracting_dims = [3] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x3x4x5xf32>, tensor<5x2x6x4xf32>) -> tensor<2x4x3x6xf32> loc(#loc)
    %1 = stablehlo.dot_general %arg0, %arg2, contracting_dims = [3] x [1] : (tensor<2x3x4x5xf32>, tensor<6x5xf32>) -> tensor<2x3x4x6xf32>
    %2 = stablehlo.dot_general %arg2, %arg2, contracting_dims = [0, 1] x [0, 1] : (tensor<6x5xf32>, tensor<6x5xf32>) -> tensor<f32>
    %3 = stablehlo.dot_general %arg2, %arg2, contracting_dims = [0] x [0] : (tensor<6x5xf32>, tensor<6x5xf32>) -> tensor<5x5xf32>
    %4 = stablehlo.slice %arg0 [0:1, 0:3, 2:3, 0:5] : (tensor<2x3x4x5xf32>) -> tensor<1x3x1x5xf32>
    %5 = stablehlo.reshape %4 : (tensor<1x3x1x5xf32>) -> tensor<3x5xf32>
    %6 = stablehlo.transpose %5, dims = [1, 0] : (tensor<3x5xf32>) -> tensor<5x3xf32>
    %7 = stablehlo.dot %arg2, %6, precision = [HIGHEST, HIGHEST] : (tensor<6x5xf32>, tensor<5x3xf32>) -> tensor<6x3xf32>
    return %0, %1, %2, %3, %7 : tensor<2x4x3x6xf32>, tensor<2x3x4x6xf32>, tensor<f32>, tensor<5x5xf32>, tensor<6x3xf32>
  } loc(#loc)
} loc(#loc)
