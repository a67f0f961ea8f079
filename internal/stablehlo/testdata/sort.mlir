module @jit_f {
  func.func public @main(%arg0: tensor<3x4xf32>, %arg1: tensor<3x4xi32>, %arg2: tensor<3xi32>) -> (tensor<3x4xf32>, tensor<3x4xi32>, tensor<3x4xi32>, tensor<3x4xi32>, tensor<3x4xf32>, tensor<3x4xi32>, tensor<3x4xi32>, tensor<3x4xf32>) {
    %0 = stablehlo.iota dim = 1 : tensor<3x4xi32>
    %1:3 = "stablehlo.sort"(%arg0, %0, %arg1) <{dimension = 1 : i64, is_stable = true}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>, %c: tensor<i32>, %d: tensor<i32>, %e: tensor<i32>, %f: tensor<i32>):
      %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %2 = stablehlo.compare EQ, %a, %cst, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %3 = stablehlo.select %2, %cst, %a : tensor<i1>, tensor<f32>
      %4 = stablehlo.compare LT, %3, %b, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %4 : tensor<i1>
    }) : (tensor<3x4xf32>, tensor<3x4xi32>, tensor<3x4xi32>) -> (tensor<3x4xf32>, tensor<3x4xi32>, tensor<3x4xi32>)
    %5 = "stablehlo.sort"(%arg1) <{dimension = 0 : i64}> ({
    ^bb0(%a: tensor<i32>, %b: tensor<i32>):
      %6 = stablehlo.compare GT, %a, %b, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %6 : tensor<i1>
    }) : (tensor<3x4xi32>) -> tensor<3x4xi32>
    %7 = stablehlo.reshape %arg2 : (tensor<3xi32>) -> tensor<3x1xi32>
    %8 = "stablehlo.scatter"(%arg0, %7, %arg0) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      stablehlo.return %b : tensor<f32>
    }) : (tensor<3x4xf32>, tensor<3x1xi32>, tensor<3x4xf32>) -> tensor<3x4xf32>
    %cst_1 = stablehlo.constant dense<3> : tensor<3x4xi32>
    %9 = stablehlo.divide %arg1, %cst_1 : tensor<3x4xi32>
    %10 = stablehlo.remainder %arg1, %cst_1 : tensor<3x4xi32>
    %11 = stablehlo.convert %arg1 : (tensor<3x4xi32>) -> tensor<3x4xf32>
    %12 = stablehlo.power %arg0, %11 : tensor<3x4xf32>
    return %1#0, %1#1, %1#2, %5, %8, %9, %10, %12 : tensor<3x4xf32>, tensor<3x4xi32>, tensor<3x4xi32>, tensor<3x4xi32>, tensor<3x4xf32>, tensor<3x4xi32>, tensor<3x4xi32>, tensor<3x4xf32>
  }
}
