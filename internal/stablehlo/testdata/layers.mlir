module @jit_layers {
  func.func public @main(%arg0: tensor<4x8xf32>, %arg1: tensor<4x8x8xf32>, %arg2: tensor<8x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0:2 = stablehlo.while(%i = %c, %x = %arg0) : tensor<i32>, tensor<4x8xf32>
    cond {
      %n = stablehlo.constant dense<4> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %2 = stablehlo.dynamic_slice %arg1, %i, %c, %c, sizes = [1, 8, 8] : (tensor<4x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x8xf32>
      %3 = stablehlo.reshape %2 : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
      %4 = stablehlo.dot_general %x, %3, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
      %two = stablehlo.constant dense<2> : tensor<i32>
      %r = stablehlo.multiply %i, %two : tensor<i32>
      %5 = stablehlo.dynamic_slice %arg2, %r, %c, sizes = [1, 8] : (tensor<8x8xf32>, tensor<i32>, tensor<i32>) -> tensor<1x8xf32>
      %6 = stablehlo.reshape %5 : (tensor<1x8xf32>) -> tensor<8xf32>
      %7 = stablehlo.broadcast_in_dim %6, dims = [1] : (tensor<8xf32>) -> tensor<4x8xf32>
      %8 = stablehlo.add %4, %7 : tensor<4x8xf32>
      %9 = stablehlo.tanh %8 : tensor<4x8xf32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %10 = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %10, %9 : tensor<i32>, tensor<4x8xf32>
    }
    %11:2 = stablehlo.while(%i = %c, %x = %0#1) : tensor<i32>, tensor<4x8xf32>
    cond {
      %n = stablehlo.constant dense<4> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %end = stablehlo.constant dense<3> : tensor<i32>
      %back = stablehlo.subtract %end, %i : tensor<i32>
      %2 = stablehlo.dynamic_slice %arg1, %back, %c, %c, sizes = [1, 8, 8] : (tensor<4x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x8xf32>
      %3 = stablehlo.reshape %2 : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
      %4 = stablehlo.dot_general %x, %3, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %10 = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %10, %4 : tensor<i32>, tensor<4x8xf32>
    }
    return %0#1, %11#1 : tensor<4x8xf32>, tensor<4x8xf32>
  }
}
