module @jit_f {
  func.func public @main(%arg0: tensor<2x5x4xf32>, %arg1: tensor<3x2x6xf32>, %arg2: tensor<2x3x6xf32>) -> (tensor<2x3x6xf32>, tensor<3x2x6xf32>) {
    %0 = stablehlo.convolution(%arg0, %arg1) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {stride = [2], pad = [[1, 1]], lhs_dilate = [1], rhs_dilate = [1], reverse = [true]} {batch_group_count = 1 : i64, feature_group_count = 2 : i64, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]} : (tensor<2x5x4xf32>, tensor<3x2x6xf32>) -> tensor<2x3x6xf32>
    %1 = stablehlo.convolution(%arg0, %arg2) dim_numbers = [f, 0, b]x[i, 0, o]->[0, b, f], window = {pad = [[1, 1]], rhs_dilate = [2]} {batch_group_count = 2 : i64, feature_group_count = 1 : i64} : (tensor<2x5x4xf32>, tensor<2x3x6xf32>) -> tensor<3x2x6xf32>
    return %0, %1 : tensor<2x3x6xf32>, tensor<3x2x6xf32>
  }
}
