module @jit_f {
  func.func public @main(%arg0: tensor<6xf32>) -> (tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xi32>, tensor<6xf32>, tensor<6xi1>) {
    %0 = stablehlo.exponential_minus_one %arg0 : tensor<6xf32>
    %1 = stablehlo.abs %arg0 : tensor<6xf32>
    %2 = stablehlo.log_plus_one %1 : tensor<6xf32>
    %3 = stablehlo.cbrt %arg0 {result_accuracy = #stablehlo.result_accuracy<mode = #stablehlo.result_accuracy_mode<DEFAULT>>} : tensor<6xf32>
    %4 = stablehlo.round_nearest_even %arg0 : tensor<6xf32>
    %5 = stablehlo.round_nearest_afz %arg0 : tensor<6xf32>
    %6 = stablehlo.ceil %arg0 : tensor<6xf32>
    %7 = stablehlo.sign %arg0 : tensor<6xf32>
    %cst = stablehlo.constant dense<2.000000e+00> : tensor<6xf32>
    %8 = stablehlo.remainder %arg0, %cst : tensor<6xf32>
    %9 = stablehlo.convert %arg0 : (tensor<6xf32>) -> tensor<6xi32>
    %cst_0 = stablehlo.constant dense<-1.000000e+00> : tensor<f32>
    %cst_1 = stablehlo.constant dense<1.250000e+00> : tensor<f32>
    %10 = stablehlo.clamp %cst_0, %arg0, %cst_1 : (tensor<f32>, tensor<6xf32>, tensor<f32>) -> tensor<6xf32>
    %11 = stablehlo.is_finite %arg0 : (tensor<6xf32>) -> tensor<6xi1>
    return %0, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11 : tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xi32>, tensor<6xf32>, tensor<6xi1>
  }
}
