import hocket, torch

mlp = hocket.load("examples/mlp.hkt", strategy="exchange")
y = mlp(x=torch.randn(256, 128).bfloat16(), w1=torch.randn(512, 128).bfloat16(), w2=torch.randn(128, 512).bfloat16())
print(tuple(y.shape), y.dtype)
