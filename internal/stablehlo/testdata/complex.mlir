module @jit_f {
  func.func public @main(%arg0: tensor<6xf32>, %arg1: tensor<6xf32>) -> (tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>) {
    %z = stablehlo.complex %arg0, %arg1 : tensor<6xcomplex<f32>>
    %cst = stablehlo.constant dense<(5.000000e-01,-1.250000e+00)> : tensor<complex<f32>>
    %b = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<complex<f32>>) -> tensor<6xcomplex<f32>>
    %w = stablehlo.reverse %z, dims = [0] : tensor<6xcomplex<f32>>
    %b_multiply = stablehlo.multiply %z, %w : tensor<6xcomplex<f32>>
    %r0 = stablehlo.real %b_multiply : (tensor<6xcomplex<f32>>) -> tensor<6xf32>
    %i0 = stablehlo.imag %b_multiply : (tensor<6xcomplex<f32>>) -> tensor<6xf32>
    %b_divide = stablehlo.divide %z, %w : tensor<6xcomplex<f32>>
    %r1 = stablehlo.real %b_divide : (tensor<6xcomplex<f32>>) -> tensor<6xf32>
    %i1 = stablehlo.imag %b_divide : (tensor<6xcomplex<f32>>) -> tensor<6xf32>
    %b_add = stablehlo.add %z, %b : tensor<6xcomplex<f32>>
    %r2 = stablehlo.real %b_add : (tensor<6xcomplex<f32>>) -> tensor<6xf32>
    %i2 = stablehlo.imag %b_add : (tensor<6xcomplex<f32>>) -> tensor<6xf32>
    %b_subtract = stablehlo.subtract %z, %w : tensor<6xcomplex<f32>>
    %r3 = stablehlo.real %b_subtract : (tensor<6xcomplex<f32>>) -> tensor<6xf32>
    %i3 = stablehlo.imag %b_subtract : (tensor<6xcomplex<f32>>) -> tensor<6xf32>
    %u_exponential = stablehlo.exponential %z : tensor<6xcomplex<f32>>
    %r4 = stablehlo.real %u_exponential : (tensor<6xcomplex<f32>>) -> tensor<6xf32>
    %i4 = stablehlo.imag %u_exponential : (tensor<6xcomplex<f32>>) -> tensor<6xf32>
    %u_exponential_minus_one = stablehlo.exponential_minus_one %z : tensor<6xcomplex<f32>>
    %r5 = stablehlo.real %u_exponential_minus_one : (tensor<6xcomplex<f32>>) -> tensor<6xf32>
    %i5 = stablehlo.imag %u_exponential_minus_one : (tensor<6xcomplex<f32>>) -> tensor<6xf32>
    %u_sine = stablehlo.sine %z : tensor<6xcomplex<f32>>
    %r6 = stablehlo.real %u_sine : (tensor<6xcomplex<f32>>) -> tensor<6xf32>
    %i6 = stablehlo.imag %u_sine : (tensor<6xcomplex<f32>>) -> tensor<6xf32>
    %u_cosine = stablehlo.cosine %z : tensor<6xcomplex<f32>>
    %r7 = stablehlo.real %u_cosine : (tensor<6xcomplex<f32>>) -> tensor<6xf32>
    %i7 = stablehlo.imag %u_cosine : (tensor<6xcomplex<f32>>) -> tensor<6xf32>
    %u_tanh = stablehlo.tanh %z : tensor<6xcomplex<f32>>
    %r8 = stablehlo.real %u_tanh : (tensor<6xcomplex<f32>>) -> tensor<6xf32>
    %i8 = stablehlo.imag %u_tanh : (tensor<6xcomplex<f32>>) -> tensor<6xf32>
    %u_sqrt = stablehlo.sqrt %z : tensor<6xcomplex<f32>>
    %r9 = stablehlo.real %u_sqrt : (tensor<6xcomplex<f32>>) -> tensor<6xf32>
    %i9 = stablehlo.imag %u_sqrt : (tensor<6xcomplex<f32>>) -> tensor<6xf32>
    %u_rsqrt = stablehlo.rsqrt %z : tensor<6xcomplex<f32>>
    %r10 = stablehlo.real %u_rsqrt : (tensor<6xcomplex<f32>>) -> tensor<6xf32>
    %i10 = stablehlo.imag %u_rsqrt : (tensor<6xcomplex<f32>>) -> tensor<6xf32>
    %u_logistic = stablehlo.logistic %z : tensor<6xcomplex<f32>>
    %r11 = stablehlo.real %u_logistic : (tensor<6xcomplex<f32>>) -> tensor<6xf32>
    %i11 = stablehlo.imag %u_logistic : (tensor<6xcomplex<f32>>) -> tensor<6xf32>
    %u_sign = stablehlo.sign %z : tensor<6xcomplex<f32>>
    %r12 = stablehlo.real %u_sign : (tensor<6xcomplex<f32>>) -> tensor<6xf32>
    %i12 = stablehlo.imag %u_sign : (tensor<6xcomplex<f32>>) -> tensor<6xf32>
    %u_negate = stablehlo.negate %z : tensor<6xcomplex<f32>>
    %r13 = stablehlo.real %u_negate : (tensor<6xcomplex<f32>>) -> tensor<6xf32>
    %i13 = stablehlo.imag %u_negate : (tensor<6xcomplex<f32>>) -> tensor<6xf32>
    %m = stablehlo.reshape %z : (tensor<6xcomplex<f32>>) -> tensor<2x3xcomplex<f32>>
    %t = stablehlo.transpose %m, dims = [1, 0] : (tensor<2x3xcomplex<f32>>) -> tensor<3x2xcomplex<f32>>
    %d = stablehlo.dot_general %t, %m, contracting_dims = [1] x [0] : (tensor<3x2xcomplex<f32>>, tensor<2x3xcomplex<f32>>) -> tensor<3x3xcomplex<f32>>
    %s = stablehlo.slice %d [0:2, 0:3] : (tensor<3x3xcomplex<f32>>) -> tensor<2x3xcomplex<f32>>
    %dot = stablehlo.reshape %s : (tensor<2x3xcomplex<f32>>) -> tensor<6xcomplex<f32>>
    %r14 = stablehlo.real %dot : (tensor<6xcomplex<f32>>) -> tensor<6xf32>
    %i14 = stablehlo.imag %dot : (tensor<6xcomplex<f32>>) -> tensor<6xf32>
    %zero = stablehlo.constant dense<(0.000000e+00,0.000000e+00)> : tensor<complex<f32>>
    %sum = stablehlo.reduce(%z init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<6xcomplex<f32>>, tensor<complex<f32>>) -> tensor<complex<f32>>
    %sums = stablehlo.broadcast_in_dim %sum, dims = [] : (tensor<complex<f32>>) -> tensor<6xcomplex<f32>>
    %r15 = stablehlo.real %sums : (tensor<6xcomplex<f32>>) -> tensor<6xf32>
    %i15 = stablehlo.imag %sums : (tensor<6xcomplex<f32>>) -> tensor<6xf32>
    %abs = stablehlo.abs %z : (tensor<6xcomplex<f32>>) -> tensor<6xf32>
    %eq = stablehlo.compare EQ, %z, %w : (tensor<6xcomplex<f32>>, tensor<6xcomplex<f32>>) -> tensor<6xi1>
    %c = stablehlo.convert %eq : (tensor<6xi1>) -> tensor<6xf32>
    return %r0, %i0, %r1, %i1, %r2, %i2, %r3, %i3, %r4, %i4, %r5, %i5, %r6, %i6, %r7, %i7, %r8, %i8, %r9, %i9, %r10, %i10, %r11, %i11, %r12, %i12, %r13, %i13, %r14, %i14, %r15, %i15, %abs, %c : tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>
  }
}
