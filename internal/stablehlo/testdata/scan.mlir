module @jit_scan {
  sdy.mesh @mesh = <["tp"=2]>
  func.func public @main(%arg0: tensor<3x4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {"tp"}]>}, %arg1: tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<3x2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {?}]>}) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<3x2x4xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1:4 = stablehlo.while(%iterArg = %arg0, %iterArg_0 = %c, %iterArg_1 = %arg1, %iterArg_2 = %0) : tensor<3x4x4xf32>, tensor<i32>, tensor<2x4xf32>, tensor<3x2x4xf32>
     cond {
      %c_3 = stablehlo.constant dense<3> : tensor<i32>
      %2 = stablehlo.compare LT, %iterArg_0, %c_3, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %c_3 = stablehlo.constant dense<0> : tensor<i32>
      %2 = stablehlo.compare LT, %iterArg_0, %c_3, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %c_4 = stablehlo.constant dense<3> : tensor<i32>
      %3 = stablehlo.add %iterArg_0, %c_4 : tensor<i32>
      %4 = stablehlo.select %2, %3, %iterArg_0 : tensor<i1>, tensor<i32>
      %c_5 = stablehlo.constant dense<0> : tensor<i32>
      %5 = stablehlo.dynamic_slice %iterArg, %4, %c_5, %c_5, sizes = [1, 4, 4] : (tensor<3x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
      %6 = stablehlo.reshape %5 : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %7:2 = func.call @None(%iterArg_1, %6) : (tensor<2x4xf32>, tensor<4x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
      %8 = stablehlo.broadcast_in_dim %7#1, dims = [1, 2] : (tensor<2x4xf32>) -> tensor<1x2x4xf32>
      %9 = stablehlo.dynamic_update_slice %iterArg_2, %8, %4, %c_5, %c_5 : (tensor<3x2x4xf32>, tensor<1x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x2x4xf32>
      %c_6 = stablehlo.constant dense<1> : tensor<i32>
      %10 = stablehlo.add %iterArg_0, %c_6 : tensor<i32>
      stablehlo.return %iterArg, %10, %7#0, %9 : tensor<3x4x4xf32>, tensor<i32>, tensor<2x4xf32>, tensor<3x2x4xf32>
    }
    return %1#2, %1#3 : tensor<2x4xf32>, tensor<3x2x4xf32>
  }
  func.func private @None(%arg0: tensor<2x4xf32>, %arg1: tensor<4x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>) {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
    %1 = stablehlo.tanh %0 : tensor<2x4xf32>
    return %1, %0 : tensor<2x4xf32>, tensor<2x4xf32>
  }
}
