module @jit_f {
  func.func public @main(%arg0: tensor<2x5xf32>, %arg1: tensor<i32>, %arg2: tensor<2x2xf32>) -> (tensor<2x3xf32>, tensor<5x8xf32>, tensor<2x5xf32>, tensor<2x2xf32>, tensor<2x5xf32>, tensor<2x5xf32>, tensor<2x3xf32>, tensor<4x5xf32>, tensor<2x5xf32>) {
    %0 = stablehlo.slice %arg0 [0:2, 0:5:2] : (tensor<2x5xf32>) -> tensor<2x3xf32>
    %cst = stablehlo.constant dense<9.000000e+00> : tensor<f32>
    %1 = stablehlo.pad %arg0, %cst, low = [1, -1], high = [1, 0], interior = [1, 1] : (tensor<2x5xf32>, tensor<f32>) -> tensor<5x8xf32>
    %2 = stablehlo.reverse %arg0, dims = [1] : tensor<2x5xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %3 = stablehlo.dynamic_slice %arg0, %c, %arg1, sizes = [2, 2] : (tensor<2x5xf32>, tensor<i32>, tensor<i32>) -> tensor<2x2xf32>
    %4 = stablehlo.dynamic_update_slice %arg0, %arg2, %c, %arg1 : (tensor<2x5xf32>, tensor<2x2xf32>, tensor<i32>, tensor<i32>) -> tensor<2x5xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %5 = "stablehlo.reduce_window"(%arg0, %cst_0) <{padding = dense<[[0, 0], [4, 0]]> : tensor<2x2xi64>, window_dimensions = array<i64: 1, 5>}> ({
    ^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>):
      %20 = stablehlo.add %arg3, %arg4 : tensor<f32>
      stablehlo.return %20 : tensor<f32>
    }) : (tensor<2x5xf32>, tensor<f32>) -> tensor<2x5xf32>
    %cst_1 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %6 = "stablehlo.reduce_window"(%arg0, %cst_1) <{padding = dense<[[0, 0], [0, 1]]> : tensor<2x2xi64>, window_dimensions = array<i64: 1, 2>, window_strides = array<i64: 1, 2>}> ({
    ^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>):
      %20 = stablehlo.maximum %arg3, %arg4 : tensor<f32>
      stablehlo.return %20 : tensor<f32>
    }) : (tensor<2x5xf32>, tensor<f32>) -> tensor<2x3xf32>
    %7 = stablehlo.concatenate %arg0, %2, dim = 0 : (tensor<2x5xf32>, tensor<2x5xf32>) -> tensor<4x5xf32>
    %8 = "stablehlo.case"(%arg1) ({
      stablehlo.return %arg0 : tensor<2x5xf32>
    }, {
      stablehlo.return %2 : tensor<2x5xf32>
    }, {
      %20 = stablehlo.negate %arg0 : tensor<2x5xf32>
      stablehlo.return %20 : tensor<2x5xf32>
    }) : (tensor<i32>) -> tensor<2x5xf32>
    return %0, %1, %2, %3, %4, %5, %6, %7, %8 : tensor<2x3xf32>, tensor<5x8xf32>, tensor<2x5xf32>, tensor<2x2xf32>, tensor<2x5xf32>, tensor<2x5xf32>, tensor<2x3xf32>, tensor<4x5xf32>, tensor<2x5xf32>
  }
}
