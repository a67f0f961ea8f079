module @jit_f {
  func.func public @main(%arg0: tensor<7xi32>, %arg1: tensor<7x3xf32>, %arg2: tensor<5x3xf32>) -> tensor<5x3xf32> {
    %0 = stablehlo.reshape %arg0 : (tensor<7xi32>) -> tensor<7x1xi32>
    %1 = "stablehlo.scatter"(%arg2, %0, %arg1) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<5x3xf32>, tensor<7x1xi32>, tensor<7x3xf32>) -> tensor<5x3xf32>
    return %1 : tensor<5x3xf32>
  }
}
